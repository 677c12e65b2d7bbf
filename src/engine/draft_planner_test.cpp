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

/// Of 1, 2, 3, ... rows, as measured.
StepTimes step_times(const std::vector<double>& seconds) {
  std::vector<StepTimes::Point> points;
  points.reserve(seconds.size());
  for (const double each : seconds)
    points.push_back({points.size() + 1, each, 10});
  return StepTimes(points);
}

/// Step times of a machine on which every row costs the same share of a step.
StepTimes linear_times(double first, double each_more, size_t rows = 6) {
  std::vector<double> seconds;
  seconds.reserve(rows);
  for (size_t i = 0; i < rows; ++i)
    seconds.push_back(first + each_more * static_cast<double>(i));
  return step_times(seconds);
}

std::vector<size_t> choose(const std::vector<std::vector<double>>& survival, const StepTimes& times,
                           double draft_seconds) {
  const std::vector<std::span<const double>> views(survival.begin(), survival.end());
  return choose_draft_lengths(views, times, draft_seconds);
}

TEST(StepTimes, GoOnAlongTheLastDifference) {
  const StepTimes times = step_times({1, 1.5, 2.5});
  EXPECT_DOUBLE_EQ(times.seconds(1), 1);
  EXPECT_DOUBLE_EQ(times.seconds(3), 2.5);
  EXPECT_DOUBLE_EQ(times.seconds(5), 4.5);
  EXPECT_DOUBLE_EQ(step_times({2}).seconds(3), 6);
}

TEST(StepTimes, LieOnLinesBetweenPoints) {
  const StepTimes times({{2, 1, 1}, {6, 3, 1}, {16, 4, 1}});
  EXPECT_DOUBLE_EQ(times.seconds(1), 1);  // less than anything known: as the first
  EXPECT_DOUBLE_EQ(times.seconds(3), 1.5);
  EXPECT_DOUBLE_EQ(times.seconds(11), 3.5);
  EXPECT_DOUBLE_EQ(times.seconds(26), 5);
}

TEST(StepTimes, FollowWhatIsMeasured) {
  StepTimes times = step_times({1, 1.5});
  for (int i = 0; i < 100; ++i)
    times.note(2, 3);
  EXPECT_NEAR(times.seconds(2), 3, 0.01);
  EXPECT_DOUBLE_EQ(times.seconds(1), 1);
}

/// Between two points both follow, and what was measured comes out.
TEST(StepTimes, FollowWhatIsMeasuredBetweenPoints) {
  StepTimes times({{8, 1, 10}, {16, 2, 10}});
  for (int i = 0; i < 100; ++i)
    times.note(10, 5);
  EXPECT_NEAR(times.seconds(10), 5, 0.01);
  EXPECT_GT(times.seconds(8), times.seconds(16));  // the nearer one most
}

/// Estimates are ratios: a first measurement gives all of them their size, and those that follow correct one each.
TEST(StepTimes, EstimatesTakeTheirScaleFromTheFirstMeasurement) {
  StepTimes times({{1, 100, 0}, {2, 150, 0}, {4, 300, 0}});
  times.note(1, 2);
  EXPECT_DOUBLE_EQ(times.seconds(1), 2);
  EXPECT_DOUBLE_EQ(times.seconds(2), 3);
  EXPECT_DOUBLE_EQ(times.seconds(4), 6);
  EXPECT_EQ(times.measurements(1), 1);
  EXPECT_EQ(times.measurements(4), 0);
  times.note(1, 4);
  EXPECT_DOUBLE_EQ(times.seconds(1), 3);  // the mean of two
  EXPECT_DOUBLE_EQ(times.seconds(4), 6);
  times.note(4, 5);
  EXPECT_DOUBLE_EQ(times.seconds(4), 5);
  EXPECT_DOUBLE_EQ(times.seconds(1), 3);
}

/// The first pass of six rows was stopped by other work for long: that is not believed of it, and of no other number.
TEST(StepTimes, OneMeasurementThatWasStoppedDoesNotSpoilEstimates) {
  StepTimes times({{1, 10, 0}, {2, 13, 0}, {6, 20, 0}});
  times.note(1, 1);
  times.note(6, 100);
  EXPECT_DOUBLE_EQ(times.seconds(2), 1.3);
  EXPECT_DOUBLE_EQ(times.seconds(6), 4);  // twice what was estimated
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
  EXPECT_THAT(choose({{0.6, 0.55}}, step_times({1, 1.9, 1.9}), 0), ElementsAre(2));
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
    const StepTimes times = step_times(seconds);
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

/// Half a second's worth of short steps, as of a small model: drafts that do not pay cost it two steps and half a per
/// cent, whether the costs were measured before or are learnt on the way.
TEST(DraftPlanner, ShortAnswersAreAsFastAsWithoutDrafts) {
  const Simulation simulation{linear_times(1, 0.75), 0.65, 0, 0.6};
  for (const bool is_profiled : {true, false}) {
    std::vector<StepTimes::Point> points = linear_times(1, 0.1).points();
    for (StepTimes::Point& point : points)
      point.measurements = 0;
    DraftPlanner planner(is_profiled ? simulation.times : StepTimes(points), 0.1, DraftPlanner::Costs::kMeasured);
    EXPECT_GT(simulation.run(planner, 900), 0.99) << is_profiled;
  }
}

/// Nothing is drafted before it is known what a step without drafts takes.
TEST(DraftPlanner, EstimatedCostsWaitForPlainSteps) {
  DraftPlanner planner(StepTimes({{1, 10, 0}, {6, 25, 0}}), 2, DraftPlanner::Costs::kMeasured);
  for (int i = 0; i < 8; ++i) {
    EXPECT_FALSE(planner.wants_drafts(1)) << i;
    EXPECT_TRUE(planner.wants_rows(1)) << i;
    planner.note({.seconds = 0.1});
  }
  EXPECT_TRUE(planner.wants_drafts(1));
  EXPECT_DOUBLE_EQ(planner.draft_seconds(), 0.02);  // a fifth of a step, as was estimated
  EXPECT_DOUBLE_EQ(planner.times().seconds(6), 0.25);
}

/// The first steps behind a prompt take twice as long as they will, so that drafts seem to pay at first.
TEST(DraftPlanner, SlowFirstStepsAreNotTakenForWhatStepsCost) {
  std::vector<StepTimes::Point> points = linear_times(1, 0.3).points();
  for (StepTimes::Point& point : points)
    point.measurements = 0;
  DraftPlanner planner(StepTimes(points), 0.3, DraftPlanner::Costs::kMeasured);
  for (int i = 0; i < 3; ++i)
    planner.note({.seconds = 2});
  // The first draft always stands and the others never do; with it a step takes 3.4 for two tokens.
  double seconds = 0;
  for (int64_t tokens = 0; tokens < 900;) {
    DraftPlanner::Step step{.seconds = 1};
    if (planner.wants_drafts(1))
      step = {.rows = 2, .tokens = 2, .seconds = 2.4, .draft_seconds = 1, .is_drafted = true};
    planner.note(step);
    tokens += static_cast<int64_t>(step.tokens);
    seconds += step.seconds + step.draft_seconds;
  }
  EXPECT_LT(seconds, 900 * 1.015);
}

/// Other work stops a step now and then for ten times as long, drafted or not: drafts that pay go on.
TEST(DraftPlanner, StepsThatOtherWorkStoppedDoNotEndDrafts) {
  DraftPlanner planner(linear_times(1, 0.1), 0.2, DraftPlanner::Costs::kMeasured);
  std::mt19937 random(3);
  int64_t drafted = 0;
  for (int i = 0; i < 2000; ++i) {
    const double longer = random() % 20 == 0 ? 10 : 1;
    DraftPlanner::Step step{.seconds = longer};
    if (planner.wants_drafts(1)) {
      step = {.rows = 4, .tokens = 3, .seconds = 1.3 * longer, .draft_seconds = 0.2, .is_drafted = true};
      ++drafted;
    }
    planner.note(step);
  }
  EXPECT_GT(drafted, 1900);
}

/// While drafts are off, their windows are not written; they are full again when the next try comes.
TEST(DraftPlanner, RowsAreWrittenWellBeforeTheNextTry) {
  DraftPlanner planner(linear_times(1, 0.5), 0.5, DraftPlanner::Costs::kMeasured);
  while (planner.wants_drafts(1))
    planner.note({.rows = 6, .tokens = 1, .seconds = 3.5, .draft_seconds = 0.5, .is_drafted = true});
  int64_t without_rows = 0;
  int64_t with_rows = 0;
  while (!planner.wants_drafts(1)) {
    EXPECT_TRUE(with_rows == 0 || planner.wants_rows(1));  // they do not stop again
    ++(planner.wants_rows(1) ? with_rows : without_rows);
    planner.note({.seconds = 1});
  }
  EXPECT_GT(without_rows, 200);
  EXPECT_GE(with_rows, 128);
  EXPECT_LE(with_rows, 129);
}

/// What one more row costs follows from the batch: with eight sequences in the pass the machine is at its limit, and
/// drafts that pay for one sequence do not.
TEST(DraftLengths, FollowTheTimesOfTheBatch) {
  const StepTimes times({{1, 1, 1}, {6, 1.2, 1}, {8, 1.3, 1}, {16, 4, 1}, {48, 12, 1}});
  const std::vector<double> likely = {0.8, 0.7, 0.6, 0.5, 0.4};
  EXPECT_THAT(choose({likely}, times, 0.1), ElementsAre(5));
  EXPECT_THAT(choose(std::vector(8, likely), times, 0.1), testing::Each(0));
}

TEST(DraftPlanner, NominalCostsListenToNoClock) {
  const Model model = golden::load_model("ckpt", [] {
    ModelOptions options;
    options.has_drafts = true;
    return options;
  }());
  DraftPlanner planner = estimated_draft_planner(model, DraftPlanner::Costs::kNominal);
  EXPECT_TRUE(planner.wants_drafts(1));
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

/// Profiles the golden model by a clock that goes on by a second at every look.
class DraftProfile : public testing::Test {
 protected:
  DraftPlanner profile(size_t sequences_max, double budget_seconds) {
    const DraftClock clock = [this] { return std::chrono::duration<double>(now_ += 1); };
    return profile_drafts(model_, runtime_, arena_, clock,
                          {.sequences_max = sequences_max, .budget = std::chrono::duration<double>(budget_seconds)});
  }
  static std::vector<size_t> rows_of(const StepTimes& times) {
    std::vector<size_t> rows;
    for (const StepTimes::Point& point : times.points())
      rows.push_back(point.rows);
    return rows;
  }

  Model model_ = golden::load_model("ckpt", [] {
    ModelOptions options;
    options.has_drafts = true;
    return options;
  }());
  ThreadPool pool_{1};
  Runtime runtime_{pool_, kernels::select_kernels("auto")};
  Arena arena_;
  double now_ = 0;
};

TEST_F(DraftProfile, EndsWithItsBudget) {
  const DraftPlanner planner = profile(1, 10);
  EXPECT_LE(now_, 20);
  EXPECT_THAT(rows_of(planner.times()), ElementsAre(1, 2, 3, 4, 5, 6));
  for (size_t rows = 1; rows <= 6; ++rows)
    EXPECT_GT(planner.times().seconds(rows), 0);
  EXPECT_GT(planner.times().measurements(6), 0);
  EXPECT_EQ(planner.times().measurements(4), 0);  // came too late
  EXPECT_GT(planner.draft_seconds(), 0);
}

/// Every pass takes one look of the clock, so with time enough all times are a second, estimates included.
TEST_F(DraftProfile, MeasuresBatchesOfSeveralSequencesUpToAllTheirRows) {
  const DraftPlanner planner = profile(5, 1e6);
  EXPECT_THAT(rows_of(planner.times()), ElementsAre(1, 2, 3, 4, 5, 6, 8, 16, 30));
  for (size_t rows = 1; rows <= 30; ++rows) {
    EXPECT_DOUBLE_EQ(planner.times().seconds(rows), 1) << rows;
    EXPECT_GT(planner.times().measurements(rows), 0) << rows;
  }
  EXPECT_DOUBLE_EQ(planner.draft_seconds(), 1);
}

/// What lies beyond the budget follows the weights' bytes from the last count that was measured.
TEST_F(DraftProfile, EstimatesBatchesThatItHasNoTimeFor) {
  const DraftPlanner planner = profile(5, 12);
  const WeightCosts costs = weight_costs(model_.config(), 30);
  EXPECT_EQ(planner.times().measurements(30), 0);
  EXPECT_DOUBLE_EQ(planner.times().seconds(30), costs.steps[29] / costs.steps[5]);
}

}  // namespace
}  // namespace tidepool
