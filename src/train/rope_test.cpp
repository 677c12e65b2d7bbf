#include "train/rope.h"

#include <gtest/gtest.h>

#include "kernels/kernel_table.h"
#include "train/gradient_check.h"

namespace tidepool {
namespace {

constexpr std::array<uint32_t, 4> kPositions = {0, 3, 700, 3};
constexpr size_t kHeadWidth = 10;
constexpr int64_t kTurned = 6;

template <typename Real>
RotationTable<Real> make_table() {
  RotationTable<Real> table(RopeTable(kTurned, 10000, nullptr));
  table.extend(3);
  table.extend(701);
  return table;
}

TEST(Rotation, GradientsAreThoseOfFiniteDifferences) {
  TestRandom random(1);
  const RotationTable<double> table = make_table<double>();
  Leaf<double> x(random, kPositions.size(), 2 * kHeadWidth);
  for (const Turn turn : {Turn::kForth, Turn::kBack}) {
    expect_gradients({.run =
                          [&](Tape<double>& tape) {
                            const Value<double> y = tape.make(x.value().rows(), x.value().cols());
                            std::ranges::copy(x.data(), y.data.data);
                            tape.on_backward([&x, y] {
                              for (size_t i = 0; i < x.grad().size(); ++i)
                                x.grad()[i] += y.grad.data[i];
                            });
                            rotate_in_place(tape, y, {&table, kPositions, kHeadWidth, turn});
                            return std::vector{y};
                          },
                      .inputs = {{"x", x}}});
  }
}

TEST(Rotation, WhoMadeAValueFindsItAgainOnTheWayBack) {
  TestRandom random(3);
  const RotationTable<double> table = make_table<double>();
  Leaf<double> x(random, kPositions.size(), kHeadWidth);
  const std::vector<double> before = x.data();
  ThreadPool pool(1);
  Tape<double> tape(pool, Tape<double>::Mode::kTraining);
  rotate_in_place(tape, x.value(), {&table, kPositions, kHeadWidth});
  tape.backward();
  // The engine's cosines and sines are binary32, so their squares add up to 1 within 2^-23.
  for (size_t i = 0; i < before.size(); ++i)
    EXPECT_NEAR(x.data()[i], before[i], 0x1p-22);
}

TEST(Rotation, TurnsAsTheEngineDoesAndLeavesTheRestOfAHead) {
  TestRandom random(2);
  const RotationTable<float> table = make_table<float>();
  Leaf<float> x(random, kPositions.size(), 2 * kHeadWidth);
  const std::vector<float> before = x.data();
  ThreadPool pool(1);
  Tape<float> tape(pool, Tape<float>::Mode::kForward);
  rotate_in_place(tape, x.value(), {&table, kPositions, kHeadWidth});
  const RopeTable engine_table(kTurned, 10000, nullptr);
  std::vector<float> cos(kTurned / 2);
  std::vector<float> sin(kTurned / 2);
  std::vector<float> expected = before;
  for (size_t row = 0; row < kPositions.size(); ++row) {
    engine_table.angles(kPositions[row], cos, sin);
    for (const size_t head : {size_t{0}, size_t{1}}) {
      kernels::reference_kernels().rope(expected.data() + (2 * row + head + 1) * kHeadWidth - kTurned, cos.data(),
                                        sin.data(), kTurned / 2, 1.0F);
    }
  }
  EXPECT_EQ(x.data(), expected);
  EXPECT_NE(x.data(), before);
}

}  // namespace
}  // namespace tidepool
