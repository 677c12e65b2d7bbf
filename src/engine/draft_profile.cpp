#include "engine/draft_profile.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/check.h"
#include "model/draft.h"

namespace tidepool {

namespace {

/// Row counts in the order in which they are worth measuring: the ends, then what lies between.
std::vector<size_t> measuring_order(size_t rows_max) {
  std::vector<size_t> order = {1, rows_max};
  for (size_t rows = 2; rows < rows_max; ++rows)
    order.push_back(rows);
  return order;
}

/// The least of several measurements: what disturbs one only adds to it. Never 0, as clocks have their grain.
void keep_least(std::optional<double>& known, double seconds) {
  constexpr double kGrain = 1e-9;
  known = std::max(std::min(known.value_or(seconds), seconds), kGrain);
}

/// Measures on a sequence that nobody needs.
class Profiler {
 public:
  Profiler(const Model& model, const Runtime& runtime, Arena& arena, const DraftClock& clock)
      : model_(model), runtime_(runtime), arena_(arena), clock_(clock), state_(model.new_sequence()) {}

  double step(size_t rows) {
    const Arena::Scope scope(arena_);
    const std::chrono::duration<double> start = clock_();
    std::vector<InputToken> tokens(rows);
    for (InputToken& token : tokens)
      token.id = static_cast<int32_t>(next_id_++ % model_.config().vocab_size);
    const ForwardRequest request{&state_, tokens, 0, rows};
    (void)forward(model_, runtime_, arena_, {&request, 1});
    return (clock_() - start).count();
  }

  double draft() {
    const Arena::Scope scope(arena_);
    const std::chrono::duration<double> start = clock_();
    const DraftRequest request{&state_, 0};
    const DraftBlocks blocks = run_draft_blocks(model_, runtime_, arena_, {&request, 1});
    const int32_t previous = 0;
    for (size_t row = 0; row < blocks.logits.rows; ++row) {
      add_markov_bias(model_, runtime_, arena_, {&previous, 1}, blocks.logits.row_range(row, 1));
      (void)draft_confidences(model_, runtime_, arena_, blocks.hidden.row_range(row, 1), {&previous, 1});
    }
    return (clock_() - start).count();
  }

 private:
  const Model& model_;
  const Runtime& runtime_;
  Arena& arena_;
  const DraftClock& clock_;
  SequenceState state_;
  int64_t next_id_ = 3;
};

/// Times of all row counts from those that were measured: between them by the shape of the weights' costs.
std::vector<double> complete_times(const std::vector<std::optional<double>>& measured,
                                   const std::vector<double>& costs) {
  std::vector<double> times;
  for (size_t i = 0; i < costs.size(); ++i) {
    size_t below = i;
    while (below > 0 && !measured[below])
      --below;
    size_t above = i;
    while (above + 1 < costs.size() && !measured[above])
      ++above;
    if (!measured[above]) above = below;
    const double low = *measured[below];
    const double high = *measured[above];
    const double span = costs[above] - costs[below];
    const double share = span > 0 ? (costs[i] - costs[below]) / span : 0;
    times.push_back(above == below ? low * costs[i] / costs[below] : low + share * (high - low));
  }
  return times;
}

}  // namespace

DraftClock steady_draft_clock() {
  return [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()); };
}

DraftPlanner profile_drafts(const Model& model, const Runtime& runtime, Arena& arena, const DraftClock& clock,
                            std::chrono::duration<double> budget) {
  TIDEPOOL_CHECK(model.draft_head() != nullptr, "a profile of drafts needs a draft head");
  const size_t rows_max = model.draft_head()->block + 1;
  const WeightCosts costs = weight_costs(model.config(), rows_max);
  const std::chrono::duration<double> start = clock();
  Profiler profiler(model, runtime, arena, clock);
  std::vector<std::optional<double>> measured(rows_max);
  keep_least(measured[0], profiler.step(1));
  const auto has_time_for = [&](double cost) {
    return clock() - start + std::chrono::duration<double>(*measured[0] * cost / costs.steps[0]) <= budget;
  };
  std::optional<double> draft;
  constexpr int kRounds = 3;  // the first also pays for what is done once: pages of weights, scratch
  for (int round = 0; round < kRounds; ++round) {
    for (const size_t rows : measuring_order(rows_max)) {
      if (!has_time_for(costs.steps[rows - 1])) break;
      keep_least(measured[rows - 1], profiler.step(rows));
    }
    if (has_time_for(costs.draft)) keep_least(draft, profiler.draft());
  }
  return {StepTimes(complete_times(measured, costs.steps)), draft.value_or(*measured[0] * costs.draft / costs.steps[0]),
          DraftPlanner::Costs::kMeasured};
}

DraftPlanner nominal_draft_planner(const Model& model) {
  TIDEPOOL_CHECK(model.draft_head() != nullptr, "a plan of drafts needs a draft head");
  const WeightCosts costs = weight_costs(model.config(), model.draft_head()->block + 1);
  return {StepTimes(costs.steps), costs.draft, DraftPlanner::Costs::kNominal};
}

}  // namespace tidepool
