#include "engine/draft_profile.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <numeric>
#include <optional>
#include <vector>

#include "base/check.h"
#include "model/draft.h"

namespace tidepool {

namespace {

/// Numbers of rows whose times are told apart: each up to a whole block of one sequence, then twice as many each time.
std::vector<size_t> known_rows(size_t block_rows, size_t rows_max) {
  std::vector<size_t> known(block_rows);
  std::iota(known.begin(), known.end(), size_t{1});
  for (size_t rows = std::bit_ceil(block_rows + 1); rows < rows_max; rows *= 2)
    known.push_back(rows);
  if (rows_max > known.back()) known.push_back(rows_max);
  return known;
}

/// Indices of `known` in the order in which they are worth measuring: one row, a block, what lies between, then more.
std::vector<size_t> measuring_order(const std::vector<size_t>& known, size_t block_rows) {
  std::vector<size_t> order = {0};
  if (block_rows > 1) order.push_back(block_rows - 1);
  for (size_t i = 1; i < known.size(); ++i)
    if (i != block_rows - 1) order.push_back(i);
  return order;
}

/// The least of several measurements: what disturbs one only adds to it. Never 0, as clocks have their grain.
void keep_least(std::optional<double>& known, double seconds) {
  constexpr double kGrain = 1e-9;
  known = std::max(std::min(known.value_or(seconds), seconds), kGrain);
}

/// What a time of the profile counts for, as the least of a few: a running average begins with it.
constexpr int64_t kProfileMeasurements = 10;

/// Measures on sequences that nobody needs.
class Profiler {
 public:
  Profiler(const Model& model, const Runtime& runtime, Arena& arena, const DraftClock& clock)
      : model_(model), runtime_(runtime), arena_(arena), clock_(clock) {}

  /// A pass with so many rows, spread evenly over so many sequences.
  double step(size_t rows, size_t sequences) {
    while (states_.size() < sequences)
      states_.push_back(model_.new_sequence());
    std::vector<InputToken> tokens(rows);
    for (InputToken& token : tokens)
      token.id = static_cast<int32_t>(next_id_++ % model_.config().vocab_size);
    std::vector<ForwardRequest> requests;
    requests.reserve(sequences);
    for (size_t i = 0; i < sequences; ++i) {
      const size_t begin = rows * i / sequences;
      const size_t count = rows * (i + 1) / sequences - begin;
      requests.push_back({&states_[i], std::span(tokens).subspan(begin, count), 0, count});
    }
    const Arena::Scope scope(arena_);
    const std::chrono::duration<double> start = clock_();
    (void)forward(model_, runtime_, arena_, requests);
    return (clock_() - start).count();
  }

  double draft() {
    const Arena::Scope scope(arena_);
    const std::chrono::duration<double> start = clock_();
    const DraftRequest request{&states_.front(), 0};
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
  std::deque<SequenceState> states_;
  int64_t next_id_ = 3;
};

/// What was measured, and from it estimates of the rest: between two that were by the shape of the weights' costs.
StepTimes complete_times(const std::vector<size_t>& known, const std::vector<std::optional<double>>& measured,
                         const std::vector<double>& costs) {
  std::vector<StepTimes::Point> points;
  points.reserve(known.size());
  for (size_t i = 0; i < known.size(); ++i) {
    size_t below = i;
    while (below > 0 && !measured[below])
      --below;
    size_t above = i;
    while (above + 1 < known.size() && !measured[above])
      ++above;
    if (!measured[above]) above = below;
    const auto cost = [&](size_t index) { return costs[known[index] - 1]; };
    const double low = *measured[below];
    const double span = cost(above) - cost(below);
    const double share = span > 0 ? (cost(i) - cost(below)) / span : 0;
    const double seconds = above == below ? low * cost(i) / cost(below) : low + share * (*measured[above] - low);
    points.push_back({known[i], seconds, measured[i] ? kProfileMeasurements : 0});
  }
  return StepTimes(std::move(points));
}

}  // namespace

DraftClock steady_draft_clock() {
  return [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()); };
}

DraftPlanner profile_drafts(const Model& model, const Runtime& runtime, Arena& arena, const DraftClock& clock,
                            const DraftProfileOptions& options) {
  TIDEPOOL_CHECK(model.draft_head() != nullptr && options.sequences_max > 0,
                 "a profile of drafts needs a draft head and a sequence");
  const size_t block_rows = model.draft_head()->block + 1;
  const std::vector<size_t> known = known_rows(block_rows, block_rows * options.sequences_max);
  const WeightCosts costs = weight_costs(model.config(), known.back());
  const std::chrono::duration<double> start = clock();
  Profiler profiler(model, runtime, arena, clock);
  std::vector<std::optional<double>> measured(known.size());
  keep_least(measured[0], profiler.step(1, 1));
  const auto has_time_for = [&](double cost) {
    return clock() - start + std::chrono::duration<double>(*measured[0] * cost / costs.steps[0]) <= options.budget;
  };
  std::optional<double> draft;
  constexpr int kRounds = 3;  // the first also pays for what is done once: pages of weights, scratch
  for (int round = 0; round < kRounds; ++round) {
    for (const size_t i : measuring_order(known, block_rows)) {
      const size_t rows = known[i];
      if (!has_time_for(costs.steps[rows - 1])) break;
      keep_least(measured[i], profiler.step(rows, rows <= block_rows ? 1 : std::min(rows, options.sequences_max)));
      if (i == block_rows - 1 && has_time_for(costs.draft)) keep_least(draft, profiler.draft());
    }
  }
  return {complete_times(known, measured, costs.steps), draft.value_or(*measured[0] * costs.draft / costs.steps[0]),
          DraftPlanner::Costs::kMeasured};
}

DraftPlanner estimated_draft_planner(const Model& model, DraftPlanner::Costs costs) {
  TIDEPOOL_CHECK(model.draft_head() != nullptr, "a plan of drafts needs a draft head");
  const WeightCosts bytes = weight_costs(model.config(), model.draft_head()->block + 1);
  std::vector<StepTimes::Point> points;
  points.reserve(bytes.steps.size());
  for (const double step : bytes.steps)
    points.push_back({points.size() + 1, step, 0});
  return {StepTimes(std::move(points)), bytes.draft, costs};
}

}  // namespace tidepool
