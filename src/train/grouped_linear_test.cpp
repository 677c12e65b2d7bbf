#include "train/grouped_linear.h"

#include <gtest/gtest.h>

#include "train/gradient_check.h"

namespace tidepool {
namespace {

TEST(GroupedLinear, GradientsAreThoseOfFiniteDifferences) {
  TestRandom random(1);
  Leaf<double> x(random, 5, 12);  // three groups of four columns, of two outputs each
  Leaf<double> weight(random, 6, 4);
  expect_gradients(
      {.run = [&](Tape<double>& tape) { return std::vector{grouped_linear(tape, x.value(), weight.value(), 3)}; },
       .inputs = {{"x", x}, {"weight", weight}}});
}

/// x = (1, 2 | 3, 4); each group has a row of weights: 10 1 + 20 2 and 30 3 + 40 4.
TEST(GroupedLinear, AGroupReadsItsOwnColumns) {
  Leaf<double> x(1, 4);
  Leaf<double> weight(2, 2);
  x.data() = {1, 2, 3, 4};
  weight.data() = {10, 20, 30, 40};
  ThreadPool pool(1);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  const Value<double> y = grouped_linear(tape, x.value(), weight.value(), 2);
  EXPECT_EQ(y.data.at(0, 0), 50);
  EXPECT_EQ(y.data.at(0, 1), 250);
}

}  // namespace
}  // namespace tidepool
