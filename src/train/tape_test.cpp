#include "train/tape.h"

#include <gtest/gtest.h>

#include "train/gradient_check.h"

namespace tidepool {
namespace {

/// y = factor * x, the smallest operator.
Value<double> scale(Tape<double>& tape, const Value<double>& x, double factor) {
  const Value<double> y = tape.make(x.rows(), x.cols());
  for (size_t i = 0; i < x.cols(); ++i)
    y.data.at(0, i) = factor * x.data.at(0, i);
  tape.on_backward([=] {
    for (size_t i = 0; i < x.cols(); ++i)
      x.grad.at(0, i) += factor * y.grad.at(0, i);
  });
  return y;
}

TEST(Tape, AValueCollectsTheGradientsOfAllItsConsumersBeforeItsOwnerReadsThem) {
  ThreadPool pool(1);
  Tape<double> tape(pool, Tape<double>::Mode::kTraining);
  const Value<double> x = tape.make(1, 1);
  x.data.at(0, 0) = 1;
  const Value<double> shared = scale(tape, x, 2);
  const Value<double> first = scale(tape, shared, 3);
  const Value<double> second = scale(tape, shared, 5);
  first.grad.at(0, 0) = 1;
  second.grad.at(0, 0) = 10;
  tape.backward();
  EXPECT_EQ(shared.grad.at(0, 0), 3 + 50);
  EXPECT_EQ(x.grad.at(0, 0), 2 * (3 + 50));
}

TEST(Tape, ForwardModeKeepsNoGradientsAndNoClosures) {
  ThreadPool pool(1);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  const Value<double> x = tape.make(2, 3);
  EXPECT_FALSE(x.wants_grad());
  tape.on_backward([] { FAIL() << "a closure of a forward pass was called"; });
  tape.backward();
}

TEST(Tape, MemoryIsAlignedAndUsedAgainInTheNextStep) {
  ThreadPool pool(1);
  Tape<float> tape(pool, Tape<float>::Mode::kTraining);
  for (int step = 0; step < 3; ++step) {
    const Value<float> small = tape.make(1, 3);
    const Value<float> large = tape.make(5000, 4096);  // more than a slab
    EXPECT_EQ(reinterpret_cast<uintptr_t>(small.data.data) % 64, 0U);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(large.grad.data) % 64, 0U);
    EXPECT_EQ(large.grad.at(4999, 4095), 0.0F);
    large.grad.at(4999, 4095) = 1;
    tape.clear();
  }
  // One slab of 64 MiB and two of 80 MB.
  EXPECT_EQ(tape.bytes_reserved(), (size_t{64} << 20U) + size_t{2} * 5000 * 4096 * 4);
}

constexpr size_t kMiB = size_t{1} << 20U;

/// A value of that many bytes, whose memory nothing touches.
void take_mebibytes(Tape<float>& tape, size_t count) {
  (void)tape.keep<std::byte>(count * kMiB);
}

TEST(Tape, EachNewGreatestValueAddsWhatItIsGreaterByAndNotAPass) {
  ThreadPool pool(1);
  Tape<float> tape(pool, Tape<float>::Mode::kForward);
  constexpr size_t kPasses = 50;
  for (size_t pass = 0; pass < kPasses; ++pass) {
    for (size_t i = 0; i < 20; ++i)
      take_mebibytes(tape, 16);
    take_mebibytes(tape, 70 + pass);
    for (size_t i = 0; i < 60; ++i)
      take_mebibytes(tape, 16);
    tape.clear();
  }
  // The last pass, and at most a slab beside it: four values of 16 MiB fill one of 64, and one that was a greater
  // value's before.
  EXPECT_LE(tape.bytes_reserved(), (size_t{80} * 16 + 70 + kPasses + 64) * kMiB);
}

TEST(Tape, HoldsTwiceTheLargestPassAtMostWhateverPassesTake) {
  ThreadPool pool(1);
  Tape<float> tape(pool, Tape<float>::Mode::kForward);
  TestRandom random(7);
  size_t largest = 0;
  for (size_t pass = 0; pass < 200; ++pass) {
    size_t taken = 0;
    const size_t size_max = 1 + random.below(150);
    for (size_t left = 1 + random.below(20); left > 0; --left) {
      const size_t size = 1 + random.below(size_max);
      take_mebibytes(tape, size);
      taken += size;
    }
    largest = std::max(largest, taken);
    ASSERT_LE(tape.bytes_reserved(), (2 * largest + 64) * kMiB) << pass;
    tape.clear();
  }
}

}  // namespace
}  // namespace tidepool
