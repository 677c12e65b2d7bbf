#include "engine/draft_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "engine/draft_profile.h"
#include "model/golden_test_support.h"

namespace tidepool {
namespace {

using testing::ElementsAre;

/// Step times of a machine on which every row costs the same share of a step.
StepTimes linear_times(double first, double each_more, size_t rows = 6) {
  std::vector<double> seconds;
  for (size_t i = 0; i < rows; ++i)
    seconds.push_back(first + each_more * static_cast<double>(i));
  return StepTimes(seconds);
}

std::vector<size_t> choose(const std::vector<std::vector<double>>& survival, const StepTimes& times,
                           double draft_seconds) {
  const std::vector<std::span<const double>> views(survival.begin(), survival.end());
  return choose_draft_lengths(views, times, draft_seconds);
}

TEST(StepTimes, GoOnAlongTheLastDifference) {
  const StepTimes times({1, 1.5, 2.5});
  EXPECT_DOUBLE_EQ(times.seconds(1), 1);
  EXPECT_DOUBLE_EQ(times.seconds(3), 2.5);
  EXPECT_DOUBLE_EQ(times.seconds(5), 4.5);
  EXPECT_DOUBLE_EQ(StepTimes({2}).seconds(3), 6);
}

TEST(StepTimes, FollowWhatIsMeasured) {
  StepTimes times({1, 1.5});
  for (int i = 0; i < 100; ++i)
    times.note(2, 3);
  EXPECT_NEAR(times.seconds(2), 3, 0.01);
  EXPECT_DOUBLE_EQ(times.seconds(1), 1);
}

TEST(DraftLengths, SureDraftsOnACheapMachineAreAllTaken) {
  EXPECT_THAT(choose({{0.99, 0.98, 0.97}}, linear_times(1, 0.01), 0.1), ElementsAre(3));
}

TEST(DraftLengths, UnlikelyDraftsOnADearMachineAreNotTaken) {
  EXPECT_THAT(choose({{0.1, 0.01}}, linear_times(1, 0.5), 0), ElementsAre(0));
}

/// (1 + a) / 1.5 against 1 / 1: worth it from a = 0.5 on; a tie is not.
TEST(DraftLengths, TurnWhereTheRateTurns) {
  EXPECT_THAT(choose({{0.5}}, linear_times(1, 0.5), 0), ElementsAre(0));
  EXPECT_THAT(choose({{0.51}}, linear_times(1, 0.5), 0), ElementsAre(1));
}

/// Two rows are as dear as three: one draft is not worth its row, but two are worth theirs.
TEST(DraftLengths, ReachAcrossAStepOfTheCosts) {
  EXPECT_THAT(choose({{0.6, 0.55}}, StepTimes({1, 1.9, 1.9}), 0), ElementsAre(2));
}

TEST(DraftLengths, EqualTheBestOfAllChoices) {
  std::mt19937 random(1);
  const auto unit = [&] { return static_cast<double>(random() % 1000) / 1000; };
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<std::vector<double>> survival(3);
    for (std::vector<double>& one : survival) {
      double alive = 1;
      for (int i = 0; i < 3; ++i)
        one.push_back(alive *= unit());
    }
    std::vector<double> seconds = {1};
    while (seconds.size() < 12)
      seconds.push_back(seconds.back() + 0.4 * unit());
    const StepTimes times(seconds);
    const double draft_seconds = 0.3 * unit();
    const auto rate = [&](const std::vector<size_t>& lengths) {
      double tokens = 0;
      size_t rows = 0;
      for (size_t s = 0; s < 3; ++s) {
        tokens += 1 + std::accumulate(survival[s].begin(), survival[s].begin() + static_cast<int64_t>(lengths[s]), 0.0);
        rows += 1 + lengths[s];
      }
      return tokens / (draft_seconds + times.seconds(rows));
    };
    double best = 0;
    for (size_t code = 0; code < 64; ++code)
      best = std::max(best, rate({code % 4, code / 4 % 4, code / 16}));
    EXPECT_NEAR(rate(choose(survival, times, draft_seconds)), best, 1e-12) << trial;
  }
}

/// A machine, and drafts each of which is taken with probability `accept` while the head promises `promise`.
struct Simulation {
  StepTimes times;
  double draft_seconds;
  double accept;
  double promise;

  /// Tokens a second over some thousands of tokens, relative to a run without drafts.
  double run(DraftPlanner& planner, int64_t tokens_wanted = 5000) const {
    std::mt19937 random(7);
    double seconds = 0;
    int64_t tokens = 0;
    while (tokens < tokens_wanted) {
      DraftPlanner::Step step;
      std::vector<double> survival;
      size_t accepted = 0;
      if (planner.wants_drafts(1)) {
        step.is_drafted = true;
        step.draft_seconds = draft_seconds;
        double alive = 1;
        for (int i = 0; i < 5; ++i)
          survival.push_back(alive *= promise);
        const std::span<const double> view = survival;
        survival.resize(planner.choose_lengths({&view, 1}).front());
        while (accepted < survival.size() && static_cast<double>(random() % 1000) < accept * 1000)
          ++accepted;
      }
      step.rows = 1 + survival.size();
      step.tokens = 1 + accepted;
      step.seconds = times.seconds(step.rows);
      planner.note(step);
      planner.note_drafts(survival, accepted);
      seconds += step.seconds + step.draft_seconds;
      tokens += static_cast<int64_t>(step.tokens);
    }
    return static_cast<double>(tokens) * times.seconds(1) / seconds;
  }
};

TEST(DraftPlanner, DraftsThatNeverStandCostNextToNothing) {
  for (const double more : {0.1, 0.5, 2.0}) {
    const Simulation simulation{linear_times(1, more), 0.3, 0, 0.95};
    DraftPlanner planner(simulation.times, simulation.draft_seconds, DraftPlanner::Costs::kMeasured);
    EXPECT_GT(simulation.run(planner), 0.98) << more;
  }
}

/// Cold experts on a disk: reading six rows takes many times as long as the profile said, which had found them in
/// memory. Switched off by what is measured, not by what was promised.
TEST(DraftPlanner, SlowDisksAreNoticed) {
  const Simulation simulation{linear_times(1, 1.5), 0.5, 0.5, 0.6};
  DraftPlanner planner(linear_times(1, 0.05), 0.05, DraftPlanner::Costs::kMeasured);
  EXPECT_GT(simulation.run(planner), 0.98);
}

TEST(DraftPlanner, GoodDraftsPayNearlyWhatTheyCould) {
  const Simulation simulation{linear_times(1, 0.1), 0.2, 0.9, 0.9};
  DraftPlanner planner(simulation.times, simulation.draft_seconds, DraftPlanner::Costs::kMeasured);
  // Five drafts in every step: (1 + 0.9 + ... + 0.9^5) / (1.5 + 0.2).
  const double all = (1 - std::pow(0.9, 6)) / 0.1 / 1.7;
  EXPECT_GT(simulation.run(planner), 0.97 * all);
}

TEST(DraftPlanner, AModestHeadIsBelievedWhenItKeepsMoreThanItsPromise) {
  const Simulation simulation{linear_times(1, 0.3), 0.1, 0.9, 0.5};
  DraftPlanner planner(simulation.times, simulation.draft_seconds, DraftPlanner::Costs::kMeasured);
  EXPECT_GT(simulation.run(planner), 1.2);
}

TEST(DraftPlanner, DraftsAreTriedAgainWhenTheTextBecomesEasy) {
  Simulation hard{linear_times(1, 0.3), 0.2, 0, 0.9};
  DraftPlanner planner(hard.times, hard.draft_seconds, DraftPlanner::Costs::kMeasured);
  (void)hard.run(planner);
  hard.accept = 0.95;
  (void)hard.run(planner, 1000);
  EXPECT_GT(hard.run(planner), 1.5);
}

TEST(DraftPlanner, NominalCostsListenToNoClock) {
  const Model model = golden::load_model("ckpt", [] {
    ModelOptions options;
    options.has_drafts = true;
    return options;
  }());
  DraftPlanner planner = nominal_draft_planner(model);
  const double before = planner.times().seconds(3);
  planner.note({.rows = 3, .tokens = 1, .seconds = 1e12, .draft_seconds = 1e12, .is_drafted = true});
  EXPECT_EQ(planner.times().seconds(3), before);
  EXPECT_GT(planner.times().seconds(2), planner.times().seconds(1));
}

/// At the released shapes: a step reads 12 GB, of which 4.5 are experts that a second row does not share, and a pass of
/// the draft head about a fifth of a step. (docs/model.md)
TEST(DraftPlanner, WeightCostsOfTheReleasedModel) {
  ModelConfig config;
  config.vocab_size = 129280;
  config.hidden_size = 5120;
  config.moe_intermediate_size = 2304;
  config.num_hidden_layers = 40;
  config.num_attention_heads = 64;
  config.head_dim = 512;
  config.q_lora_rank = 1280;
  config.o_lora_rank = 1024;
  config.o_groups = 8;
  config.n_routed_experts = 384;
  config.n_shared_experts = 1;
  config.num_experts_per_tok = 6;
  config.dspark = DsparkConfig{3, 5, 128799, {37, 38, 39}, 256, 128, 3};
  const WeightCosts costs = weight_costs(config, 6);
  // 40 x (attention 126.6 M + shared expert 35.4 M + 6 x 35.4 M / 2) + head 2 x 662 M
  EXPECT_NEAR(costs.steps[0], 12.05e9, 0.05e9);
  EXPECT_NEAR(costs.steps[1] - costs.steps[0], 4.2e9, 0.1e9);
  EXPECT_NEAR(costs.draft / costs.steps[0], 0.25, 0.05);
}

/// A clock that goes on by a second at every look: the profile ends when its budget is used up, and knows all counts.
TEST(DraftProfile, EndsWithItsBudget) {
  ModelOptions options;
  options.has_drafts = true;
  const Model model = golden::load_model("ckpt", options);
  ThreadPool pool(1);
  const Runtime runtime{pool, kernels::select_kernels("auto")};
  Arena arena;
  double now = 0;
  const DraftClock clock = [&] { return std::chrono::duration<double>(now += 1); };
  const DraftPlanner planner = profile_drafts(model, runtime, arena, clock, std::chrono::seconds(10));
  EXPECT_LE(now, 20);
  EXPECT_EQ(planner.times().known_rows(), 6U);
  for (size_t rows = 1; rows <= 6; ++rows)
    EXPECT_GT(planner.times().seconds(rows), 0);
  EXPECT_GT(planner.draft_seconds(), 0);
}

}  // namespace
}  // namespace tidepool
