#include "engine/draft_planner.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace tidepool {

namespace {

/// Least share of a new measurement in a running average: a few dozen steps forget an old machine load. Other work only
/// ever adds to a time, so one that is shorter than known says more, and one above twice what is known counts as that.
constexpr double kLongerShare = 0.1;
constexpr double kShorterShare = 0.3;
constexpr double kLongestTimes = 2;

/// What becomes of an average of so many measurements, or of an estimate, with one more: the first ones make a mean,
/// later ones a running average.
double averaged(double known, int64_t measurements, double seconds) {
  const double counted = std::min(seconds, kLongestTimes * known);
  const double least = counted < known ? kShorterShare : kLongerShare;
  return known + std::max(least, 1.0 / static_cast<double>(measurements + 1)) * (counted - known);
}

/// What a plain step takes is known after so many: the first ones behind a prompt are slow.
constexpr int64_t kPlainSteps = 8;

/// Drafts may lose so many plain steps before they are switched off, and so many more of what they had won: a run of
/// bad luck must not end drafts that pay ...
constexpr double kDebtStepsMax = 2;
constexpr double kCreditStepsMax = 8;
/// ... and are tried again when this share of the time since has paid for them: two steps by 400.
constexpr double kDebtShare = 0.005;

/// Before drafts are tried again their windows are filled for so many steps: the window of the released head.
constexpr double kWarmUpSteps = 128;

/// One step in so many goes without drafts, for the time of a plain one to stay known; more of the first.
constexpr int64_t kDraftedStepsInARow = 64;
constexpr int64_t kDraftedStepsAtFirst = 8;

bool is_for_comparison(int64_t step) {
  const bool is_early = step >= kDraftedStepsAtFirst && std::has_single_bit(static_cast<uint64_t>(step));
  return step % kDraftedStepsInARow == 0 || (step < kDraftedStepsInARow && is_early);
}

/// Calibration starts from so many drafts that kept their promise, and remembers about 1 / (1 - kMemory).
constexpr double kPriorDrafts = 8;
constexpr double kMemory = 0.99;

/// How many of `experts` are read when each of `rows` routes to `chosen` of its own.
double distinct_experts(double experts, double chosen, size_t rows) {
  return experts * (1 - std::pow(1 - chosen / experts, static_cast<double>(rows)));
}

}  // namespace

StepTimes::StepTimes(std::vector<Point> points) : points_(std::move(points)) {
  TIDEPOOL_CHECK(!points_.empty() && points_.front().rows > 0, "at least one number of rows is known");
  for (size_t i = 0; i < points_.size(); ++i) {
    TIDEPOOL_CHECK(points_[i].seconds > 0, "a step takes time");
    TIDEPOOL_CHECK(i == 0 || points_[i - 1].rows < points_[i].rows, "rows ascend");
  }
}

StepTimes::Place StepTimes::place(size_t rows) const {
  const auto at = std::ranges::lower_bound(points_, rows, {}, &Point::rows);
  const auto index = static_cast<size_t>(at - points_.begin());
  if (at == points_.end()) return {index - 1, index - 1, 0};
  if (at->rows == rows || index == 0) return {index, index, 0};
  const size_t below = points_[index - 1].rows;
  return {index - 1, index, static_cast<double>(rows - below) / static_cast<double>(at->rows - below)};
}

double StepTimes::seconds(size_t rows) const {
  if (rows == 0) return 0;
  const Point& last = points_.back();
  if (rows > last.rows) {
    const Point before = points_.size() == 1 ? Point{} : points_[points_.size() - 2];
    const double slope = std::max(last.seconds - before.seconds, 0.0) / static_cast<double>(last.rows - before.rows);
    return last.seconds + slope * static_cast<double>(rows - last.rows);
  }
  const auto [below, above, share] = place(rows);
  return points_[below].seconds + share * (points_[above].seconds - points_[below].seconds);
}

void StepTimes::note(size_t rows, double seconds) {
  if (rows == 0 || rows > points_.back().rows || seconds <= 0) return;
  const auto [below, above, share] = place(rows);
  if (std::ranges::all_of(points_, [](const Point& point) { return point.measurements == 0; })) {
    const double scale = seconds / this->seconds(rows);
    for (Point& point : points_)
      point.seconds *= scale;
  }
  const double known = this->seconds(rows);
  const auto move = [&](Point& point, double weight) {
    point.seconds += weight * (averaged(known, point.measurements, seconds) - known);
    if (weight >= 0.5) ++point.measurements;
  };
  move(points_[below], 1 - share);
  if (above != below) move(points_[above], share);
}

int64_t StepTimes::measurements(size_t rows) const {
  const auto [below, above, share] = place(rows);
  return points_[share < 0.5 ? below : above].measurements;
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
  if (is_off_) return false;
  if (costs_ == Costs::kMeasured && times_.measurements(sequences) < kPlainSteps) return false;
  return !is_for_comparison(drafted_steps_ + 1);
}

bool DraftPlanner::wants_rows(size_t sequences) const {
  return !is_off_ || debt_ <= kDebtShare * kWarmUpSteps * times_.seconds(sequences);
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

void DraftPlanner::note_times(const Step& step) {
  const auto is_measured = [](const StepTimes::Point& point) { return point.measurements > 0; };
  if (std::ranges::none_of(times_.points(), is_measured)) draft_seconds_ *= step.seconds / times_.seconds(step.rows);
  times_.note(step.rows, step.seconds);
  if (step.is_drafted) draft_seconds_ = averaged(draft_seconds_, draft_measurements_++, step.draft_seconds);
}

void DraftPlanner::note(const Step& step) {
  const bool is_measured = costs_ == Costs::kMeasured;
  if (is_measured) note_times(step);
  const double seconds =
      is_measured ? std::min(step.seconds, kLongestTimes * times_.seconds(step.rows)) : times_.seconds(step.rows);
  if (!step.is_drafted) {
    // The next step is drafted again: this one has refreshed the comparison.
    if (is_for_comparison(drafted_steps_ + 1)) ++drafted_steps_;
    if (debt_ > 0) debt_ = std::max(debt_ - kDebtShare * seconds, 0.0);
    if (debt_ <= 0) is_off_ = false;
    // What was seen long ago says little: a head that failed gets another chance to show that it does not.
    for (Calibration& seen : calibration_) {
      seen.expected += (1 - kMemory) * (kPriorDrafts - seen.expected);
      seen.accepted += (1 - kMemory) * (kPriorDrafts - seen.accepted);
    }
    return;
  }
  ++drafted_steps_;
  const double draft_seconds =
      is_measured ? std::min(step.draft_seconds, kLongestTimes * draft_seconds_) : draft_seconds_;
  const double plain = times_.seconds(step.sequences);
  const double lost =
      seconds + draft_seconds - plain * static_cast<double>(step.tokens) / static_cast<double>(step.sequences);
  debt_ = std::max(debt_ + lost, -kCreditStepsMax * plain);
  if (debt_ > kDebtStepsMax * plain) is_off_ = true;
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
