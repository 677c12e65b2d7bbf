#include "train/embedding.h"

#include <gtest/gtest.h>

#include "train/gradient_check.h"

namespace tidepool {
namespace {

TEST(Embedding, GradientsOfATokenThatComesTwiceAddUp) {
  TestRandom random(1);
  Leaf<double> table(random, 6, 20);
  const std::vector<int32_t> ids = {3, 0, 3, 5};
  expect_gradients({.run = [&](Tape<double>& tape) { return std::vector{embedding(tape, table.value(), ids)}; },
                    .inputs = {{"table", table}},
                    .entries = 120});
}

TEST(Embedding, CopiesRows) {
  TestRandom random(2);
  Leaf<float> table(random, 4, 3);
  ThreadPool pool(1);
  Tape<float> tape(pool, Tape<float>::Mode::kForward);
  const std::vector<int32_t> ids = {2};
  const Value<float> y = embedding(tape, table.value(), ids);
  EXPECT_TRUE(std::ranges::equal(y.data.row(0), table.value().data.row(2)));
}

}  // namespace
}  // namespace tidepool
