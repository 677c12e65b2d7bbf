#include "engine/draft_planner.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tidepool {

namespace {

/// Share of a new measurement in a running average: a few dozen steps forget an old machine load.
constexpr double kNewShare = 0.1;

/// Drafts may lose so many plain steps before they are switched off ...
constexpr double kDebtStepsMax = 2;
/// ... and are tried again as time goes by at which their debt is this share of it.
constexpr double kDebtShare = 0.01;

/// One step in so many goes without drafts, for the time of a plain one to stay known.
constexpr int64_t kDraftedStepsInARow = 64;

/// Calibration starts from so many drafts that kept their promise, and remembers about 1 / (1 - kMemory).
constexpr double kPriorDrafts = 8;
constexpr double kMemory = 0.99;

/// How many of `experts` are read when each of `rows` routes to `chosen` of its own.
double distinct_experts(double experts, double chosen, size_t rows) {
  return experts * (1 - std::pow(1 - chosen / experts, static_cast<double>(rows)));
}

}  // namespace

StepTimes::StepTimes(std::vector<double> seconds) : seconds_(std::move(seconds)) {
  TIDEPOOL_CHECK(!seconds_.empty() && std::ranges::all_of(seconds_, [](double s) { return s > 0; }),
                 "a step takes time");
}

double StepTimes::seconds(size_t rows) const {
  if (rows == 0) return 0;
  if (rows <= seconds_.size()) return seconds_[rows - 1];
  const double last = seconds_.back();
  const double slope = seconds_.size() == 1 ? last : std::max(last - seconds_[seconds_.size() - 2], 0.0);
  return last + slope * static_cast<double>(rows - seconds_.size());
}

void StepTimes::note(size_t rows, double seconds) {
  if (rows == 0 || rows > seconds_.size() || seconds <= 0) return;
  double& known = seconds_[rows - 1];
  known += kNewShare * (seconds - known);
}

WeightCosts weight_costs(const ModelConfig& config, size_t rows_max) {
  // Bytes a value: FP8 dense, FP4 routed experts, bfloat16 output head. Scales are a few per cent of each alike.
  const auto d = static_cast<double>(config.hidden_size);
  const auto heads = static_cast<double>(config.num_attention_heads * config.head_dim);
  const auto q_rank = static_cast<double>(config.q_lora_rank);
  const auto o_rank = static_cast<double>(config.o_lora_rank);
  const auto groups = static_cast<double>(config.o_groups);
  const double attention =
      d * q_rank + q_rank * heads + d * static_cast<double>(config.head_dim) + heads * o_rank + groups * o_rank * d;
  const double expert = 3 * d * static_cast<double>(config.moe_intermediate_size);
  const double dense = attention + static_cast<double>(config.n_shared_experts) * expert;
  const double head = 2 * d * static_cast<double>(config.vocab_size);
  const auto layers = static_cast<double>(config.num_hidden_layers);

  WeightCosts costs;
  for (size_t rows = 1; rows <= rows_max; ++rows) {
    const double routed = distinct_experts(static_cast<double>(config.n_routed_experts),
                                           static_cast<double>(config.num_experts_per_tok), rows);
    costs.steps.push_back(layers * (dense + routed * expert / 2) + head);
  }
  if (!config.dspark) return costs;
  const DsparkConfig& dspark = *config.dspark;
  const double routed =
      distinct_experts(static_cast<double>(dspark.n_routed_experts), static_cast<double>(dspark.num_experts_per_tok),
                       static_cast<size_t>(dspark.block_size));
  const auto rank = static_cast<double>(dspark.markov_rank);
  costs.draft = static_cast<double>(dspark.num_layers) * (dense + routed * expert / 2) + head +
                d * d * static_cast<double>(dspark.target_layer_ids.size()) +
                static_cast<double>(dspark.block_size) * 2 * rank * static_cast<double>(config.vocab_size);
  return costs;
}

std::vector<size_t> choose_draft_lengths(std::span<const std::span<const double>> survival, const StepTimes& times,
                                         double draft_seconds, size_t other_rows) {
  // The best drafts of any total come from taking the likeliest next one again and again: survival never rises along a
  // sequence. Step times need not be smooth, so every total is looked at.
  std::vector<size_t> lengths(survival.size(), 0);
  std::vector<size_t> best = lengths;
  double tokens = static_cast<double>(survival.size());
  size_t rows = survival.size() + other_rows;
  double best_rate = tokens / (draft_seconds + times.seconds(rows));
  while (true) {
    size_t next = survival.size();
    for (size_t s = 0; s < survival.size(); ++s) {
      if (lengths[s] == survival[s].size()) continue;
      if (next == survival.size() || survival[s][lengths[s]] > survival[next][lengths[next]]) next = s;
    }
    if (next == survival.size()) return best;
    tokens += survival[next][lengths[next]++];
    const double rate = tokens / (draft_seconds + times.seconds(++rows));
    if (rate <= best_rate) continue;
    best_rate = rate;
    best = lengths;
  }
}

DraftPlanner::DraftPlanner(StepTimes times, double draft_seconds, Costs costs)
    : times_(std::move(times)), draft_seconds_(draft_seconds), costs_(costs) {}

bool DraftPlanner::wants_drafts(size_t sequences) const {
  if (debt_ > kDebtStepsMax * times_.seconds(sequences)) return false;
  return (drafted_steps_ + 1) % kDraftedStepsInARow != 0;
}

std::vector<double> DraftPlanner::calibrated(std::span<const double> survival) const {
  std::vector<double> result;
  double before = 1;
  double estimate = 1;
  for (size_t i = 0; i < survival.size(); ++i) {
    const double alone = before > 0 ? survival[i] / before : 0;
    const double scale = i < calibration_.size() ? calibration_[i].accepted / calibration_[i].expected : 1;
    estimate *= std::min(alone * scale, 1.0);
    result.push_back(estimate);
    before = survival[i];
  }
  return result;
}

std::vector<size_t> DraftPlanner::choose_lengths(std::span<const std::span<const double>> survival) const {
  std::vector<std::vector<double>> estimates;
  for (const std::span<const double> one : survival)
    estimates.push_back(calibrated(one));
  const std::vector<std::span<const double>> views(estimates.begin(), estimates.end());
  return choose_draft_lengths(views, times_, draft_seconds_);
}

void DraftPlanner::note(const Step& step) {
  const bool is_measured = costs_ == Costs::kMeasured;
  const double seconds = is_measured ? step.seconds : times_.seconds(step.rows);
  if (is_measured) times_.note(step.rows, seconds);
  if (!step.is_drafted) {
    // The next step is drafted again: this one has refreshed the comparison.
    if ((drafted_steps_ + 1) % kDraftedStepsInARow == 0) ++drafted_steps_;
    debt_ = std::max(debt_ - kDebtShare * seconds, 0.0);
    // What was seen long ago says little: a head that failed gets another chance to show that it does not.
    for (Calibration& seen : calibration_) {
      seen.expected += (1 - kMemory) * (kPriorDrafts - seen.expected);
      seen.accepted += (1 - kMemory) * (kPriorDrafts - seen.accepted);
    }
    return;
  }
  ++drafted_steps_;
  const double draft_seconds = is_measured ? step.draft_seconds : draft_seconds_;
  draft_seconds_ += kNewShare * (draft_seconds - draft_seconds_);
  const double plain = times_.seconds(step.sequences) / static_cast<double>(step.sequences);
  const double lost = seconds + draft_seconds - plain * static_cast<double>(step.tokens);
  debt_ = std::max(debt_ + lost, 0.0);
}

void DraftPlanner::note_drafts(std::span<const double> survival, size_t accepted) {
  if (calibration_.size() < survival.size()) calibration_.resize(survival.size(), {kPriorDrafts, kPriorDrafts});
  double before = 1;
  // Only drafts behind accepted ones say anything: those up to the first that was refused.
  for (size_t i = 0; i < survival.size() && i <= accepted; ++i) {
    Calibration& seen = calibration_[i];
    const double alone = before > 0 ? survival[i] / before : 0;
    seen.expected = kMemory * seen.expected + alone;
    seen.accepted = kMemory * seen.accepted + (i < accepted ? 1 : 0);
    before = survival[i];
  }
}

}  // namespace tidepool
