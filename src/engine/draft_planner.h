#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/config.h"

namespace tidepool {

/// What a forward pass costs by its number of decode rows, in seconds (or in any other unit, as only ratios count).
class StepTimes {
 public:
  /// `seconds[i]` is the time of i + 1 rows; at least one, all positive.
  explicit StepTimes(std::vector<double> seconds);

  /// Beyond the last row count known, the last difference goes on.
  [[nodiscard]] double seconds(size_t rows) const;
  /// A pass with so many rows took so long: a running average. Row counts beyond those known are not noted.
  void note(size_t rows, double seconds);
  /// Rows known.
  [[nodiscard]] size_t known_rows() const { return seconds_.size(); }

 private:
  std::vector<double> seconds_;
};

/// Costs that follow from the config alone, in bytes of weights that are read: of a step with 1 to `rows_max` rows,
/// each of which routes to experts of its own, and of a pass of the draft head. What decode steps cost where memory is
/// the limit.
struct WeightCosts {
  std::vector<double> steps;  ///< [rows_max]
  double draft = 0;           ///< 0 without a draft head
};
[[nodiscard]] WeightCosts weight_costs(const ModelConfig& config, size_t rows_max);

/// How many drafts each sequence of a batch verifies, for the most tokens a second: maximises
///   (sum over sequences of 1 + sum of survival[0..length)) / (draft_seconds + times(sum of 1 + length)),
/// where survival[j] is the estimated probability that a sequence's drafts 0 to j are all taken (never rising in j).
/// Ties go to fewer drafts. `other_rows` are read in the same pass whatever is chosen. (docs/model.md 2.9, "Scheduler")
[[nodiscard]] std::vector<size_t> choose_draft_lengths(std::span<const std::span<const double>> survival,
                                                       const StepTimes& times, double draft_seconds,
                                                       size_t other_rows = 0);

/// Decides whether sequences are drafted, and how far, from what it is told of each step. Drafts that cost more than
/// they bring are switched off: the time lost to them never exceeds a small fixed sum and one part in a hundred of the
/// time spent. One thread at a time.
class DraftPlanner {
 public:
  enum class Costs : uint8_t {
    kMeasured,  ///< as steps are noted
    kNominal,   ///< stay as they are, whatever a step took: decisions depend on drafts alone and can be repeated
  };
  DraftPlanner(StepTimes times, double draft_seconds, Costs costs);

  /// Whether the next step of `sequences` should be drafted. Now and then it says no only to keep the comparison fresh.
  [[nodiscard]] bool wants_drafts(size_t sequences) const;
  /// For each sequence's survival as the draft head estimates it, how many drafts to verify.
  [[nodiscard]] std::vector<size_t> choose_lengths(std::span<const std::span<const double>> survival) const;

  /// What a step did. Steps that also read prompt tokens say nothing about drafts; leave them out.
  struct Step {
    size_t sequences = 1;
    size_t rows = 1;           ///< read, drafts included
    size_t tokens = 1;         ///< taken
    double seconds = 0;        ///< of the forward pass
    double draft_seconds = 0;  ///< of the draft head's pass before it
    bool is_drafted = false;   ///< a draft pass was run, even if no draft was verified
  };
  void note(const Step& step);
  /// Of a sequence's drafts with this survival (as the head estimates it) the first `accepted` were taken.
  void note_drafts(std::span<const double> survival, size_t accepted);

  [[nodiscard]] const StepTimes& times() const { return times_; }
  [[nodiscard]] double draft_seconds() const { return draft_seconds_; }

 private:
  /// What was seen at one place of a block, in running sums that forget.
  struct Calibration {
    double expected;
    double accepted;
  };
  [[nodiscard]] std::vector<double> calibrated(std::span<const double> survival) const;

  StepTimes times_;
  double draft_seconds_;
  Costs costs_;
  double debt_ = 0;  ///< seconds that drafts have lost and not yet won back
  int64_t drafted_steps_ = 0;
  std::vector<Calibration> calibration_;
};

}  // namespace tidepool
