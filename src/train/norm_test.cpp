#include "train/norm.h"

#include <gtest/gtest.h>

#include "train/gradient_check.h"

namespace tidepool {
namespace {

TEST(RmsNorm, GradientsAreThoseOfFiniteDifferences) {
  TestRandom random(1);
  Leaf<double> x(random, 5, 20);
  Leaf<double> weight(random, 1, 20);
  expect_gradients(
      {.run = [&](Tape<double>& tape) { return std::vector{rms_norm(tape, x.value(), weight.value(), 1e-3)}; },
       .inputs = {{"x", x}, {"weight", weight}}});
}

TEST(RmsNorm, EqualsTheEnginesKernel) {
  TestRandom random(2);
  Leaf<float> x(random, 3, 100, 4);
  Leaf<float> weight(1, 100);
  std::ranges::fill(weight.data(), 1.0F);
  ThreadPool pool(1);
  Tape<float> tape(pool, Tape<float>::Mode::kForward);
  const Value<float> y = rms_norm(tape, x.value(), weight.value(), 1e-6F);
  std::vector<float> expected(100);
  for (size_t row = 0; row < 3; ++row) {
    kernels::reference_kernels().rms_norm(x.value().data.row(row).data(), nullptr, 100, 1e-6F, expected.data());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(y.data.at(row, i), expected[i], 100 * 0x1p-24F * std::fabs(expected[i]));
  }
}

}  // namespace
}  // namespace tidepool
