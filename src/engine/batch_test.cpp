#include "engine/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace tidepool {
namespace {

std::map<size_t, int64_t> plan(const std::vector<BatchEntry>& entries, const BatchLimits& limits) {
  std::map<size_t, int64_t> tokens;
  for (const BatchPart& part : plan_batch(entries, limits))
    tokens[part.entry] = part.tokens;
  return tokens;
}

using Plan = std::map<size_t, int64_t>;

TEST(BatchPlan, NobodyWantsAnything) {
  EXPECT_EQ(plan({}, {8, 8}), Plan());
}

TEST(BatchPlan, WritersComeFirstAndPromptsTakeTheRest) {
  const std::vector<BatchEntry> entries = {{.prompt_tokens = 100}, {}, {}};
  EXPECT_EQ(plan(entries, {10, 10}), (Plan{{0, 8}, {1, 1}, {2, 1}}));
}

TEST(BatchPlan, PromptsAreLimitedOnlyWhileSomebodyWrites) {
  const std::vector<BatchEntry> with_writer = {{.prompt_tokens = 100}, {.prompt_tokens = 100}, {}};
  EXPECT_EQ(plan(with_writer, {64, 5}), (Plan{{0, 5}, {2, 1}}));
  const std::vector<BatchEntry> without = {{.prompt_tokens = 100}, {.prompt_tokens = 100}};
  EXPECT_EQ(plan(without, {64, 5}), (Plan{{0, 64}}));
}

TEST(BatchPlan, ShareOfZeroLetsPromptsWait) {
  EXPECT_EQ(plan({{.prompt_tokens = 9}, {}}, {64, 0}), (Plan{{1, 1}}));
  EXPECT_EQ(plan({{.prompt_tokens = 9}}, {64, 0}), (Plan{{0, 9}}));
}

TEST(BatchPlan, ShortPromptIsNotBehindALongOneForLong) {
  // The long one was served last, so the other's turn has come.
  const std::vector<BatchEntry> entries = {{.prompt_tokens = 100000, .last_service = 7}, {.prompt_tokens = 10}};
  EXPECT_EQ(plan(entries, {64, 64}), (Plan{{0, 54}, {1, 10}}));
}

TEST(BatchPlan, PriorityGoesBeforeService) {
  const std::vector<BatchEntry> entries = {{.prompt_tokens = 100, .last_service = 1},
                                           {.prompt_tokens = 100, .priority = -1, .last_service = 9}};
  EXPECT_EQ(plan(entries, {50, 50}), (Plan{{1, 50}}));
}

TEST(BatchPlan, ArrivalDecidesAmongEquals) {
  EXPECT_EQ(plan({{.prompt_tokens = 9, .arrival = 2}, {.prompt_tokens = 9, .arrival = 1}}, {9, 9}), (Plan{{1, 9}}));
}

TEST(BatchPlan, StepsThatDoNotFitWholeWaitForTheirTurn) {
  const std::vector<BatchEntry> entries = {{.decode_rows = 6, .last_service = 2},
                                           {.decode_rows = 6, .last_service = 1}};
  EXPECT_EQ(plan(entries, {8, 8}), (Plan{{1, 6}}));
}

/// With more writers than rows, each has its turn.
TEST(BatchPlan, WritersTakeTurnsWhenRowsAreFew) {
  std::vector<BatchEntry> entries(12);
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].arrival = i;
    if (i >= 8) entries[i].prompt_tokens = 1000;
  }
  std::vector<int> served(entries.size());
  uint64_t services = 0;
  for (int call = 0; call < 24; ++call) {
    for (const BatchPart& part : plan_batch(entries, {6, 2})) {
      ++served[part.entry];
      entries[part.entry].last_service = ++services;
    }
  }
  for (size_t i = 0; i < 8; ++i)
    EXPECT_EQ(served[i], 24 * 6 / 8);
}

TEST(PrefillBudget, CountsInTokensUntilItHasSeenBothCosts) {
  PrefillBudget budget(0.25, 400);
  EXPECT_EQ(budget.tokens(), 100);
  budget.note(0, 4, 0.1);
  EXPECT_EQ(budget.tokens(), 100);
}

TEST(PrefillBudget, HoldsTheTimeOfAStep) {
  PrefillBudget budget(0.5, 4096);
  budget.note(0, 4, 0.1);
  budget.note(1000, 4, 1.1);  // 1 ms a token beside the step's 0.1 s
  EXPECT_EQ(budget.tokens(), 100);
}

TEST(PrefillBudget, ZeroIsNoneAndOneIsAll) {
  EXPECT_EQ(PrefillBudget(0, 512).tokens(), 0);
  EXPECT_EQ(PrefillBudget(1, 512).tokens(), 512);
}

TEST(PrefillBudget, ProgressIsMadeHoweverDearAPromptTokenIs) {
  PrefillBudget budget(0.1, 512);
  budget.note(0, 1, 0.001);
  budget.note(1, 1, 100);
  EXPECT_EQ(budget.tokens(), PrefillBudget::kTokensMin);
}

}  // namespace
}  // namespace tidepool
