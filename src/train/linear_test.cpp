#include "train/linear.h"

#include <gtest/gtest.h>

#include "train/gradient_check.h"
#include "train/matmul.h"

namespace tidepool {
namespace {

TEST(Linear, GradientsAreThoseOfFiniteDifferences) {
  TestRandom random(1);
  Leaf<double> x(random, 5, 7);
  Leaf<double> weight(random, 4, 7);
  expect_gradients({.run = [&](Tape<double>& tape) { return std::vector{linear(tape, x.value(), weight.value())}; },
                    .inputs = {{"x", x}, {"weight", weight}}});
}

TEST(Linear, FloatEqualsDoubleForEveryPrecision) {
  TestRandom random(2);
  Leaf<double> x(random, 40, 70);
  Leaf<double> weight(random, 33, 70);
  Leaf<float> x32(40, 70);
  Leaf<float> weight32(33, 70);
  std::ranges::copy(x.data(), x32.data().begin());
  std::ranges::copy(weight.data(), weight32.data().begin());
  ThreadPool pool(2);
  Tape<double> exact(pool, Tape<double>::Mode::kForward);
  const Value<double> y = linear(exact, x.value(), weight.value());
  for (const auto precision : {kernels::GemmPrecision::kFloat32, kernels::GemmPrecision::kBf16}) {
    Tape<float> tape(pool, Tape<float>::Mode::kForward, precision);
    const Value<float> y32 = linear(tape, x32.value(), weight32.value());
    // 70 products below 1; each factor off by 2^-9 of itself in bfloat16, sums by 71 times 2^-24 in binary32.
    const double bound = precision == kernels::GemmPrecision::kBf16 ? 70 * 2 * 0x1p-9 : 70 * 73 * 0x1p-24;
    for (size_t row = 0; row < y.rows(); ++row) {
      for (size_t col = 0; col < y.cols(); ++col)
        EXPECT_NEAR(y32.data.at(row, col), y.data.at(row, col), bound);
    }
  }
}

TEST(Linear, WithoutAWantedGradientOnlyTheOtherIsComputed) {
  TestRandom random(3);
  Leaf<float> x(random, 3, 4);
  Leaf<float> weight(random, 2, 4);
  ThreadPool pool(1);
  Tape<float> tape(pool, Tape<float>::Mode::kTraining);
  const Value<float> y = linear(tape, Value<float>{x.value().data, {}}, weight.value());
  y.grad.at(0, 0) = 1;
  tape.backward();
  EXPECT_EQ(weight.grad()[0], x.data()[0]);
  EXPECT_EQ(x.grad()[0], 0.0F);
}

}  // namespace
}  // namespace tidepool
