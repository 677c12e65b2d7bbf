#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/config.h"

namespace tidepool {

/// What a forward pass costs by its number of decode rows, those of all its sequences together: known at some numbers
/// of rows, and interpolated between them.
class StepTimes {
 public:
  struct Point {
    size_t rows = 0;
    double seconds = 0;        ///< positive
    int64_t measurements = 0;  ///< that it comes from; 0 for an estimate, of which only the ratio to others counts
  };
  /// At least one point, rows ascending.
  explicit StepTimes(std::vector<Point> points);

  /// Beyond the last point, the last slope goes on.
  [[nodiscard]] double seconds(size_t rows) const;
  /// A pass with so many rows took so long. Moves the points on either side, an average at first and a running one
  /// later on; what is only estimated goes along with the first measurement. Beyond the last point nothing is noted.
  void note(size_t rows, double seconds);
  /// How often the point nearest to `rows` was measured.
  [[nodiscard]] int64_t measurements(size_t rows) const;
  [[nodiscard]] const std::vector<Point>& points() const { return points_; }

 private:
  /// The points on either side of `rows`, the same one twice at a point or outside all, and how far it is between them.
  struct Place {
    size_t below = 0;
    size_t above = 0;
    double share = 0;
  };
  [[nodiscard]] Place place(size_t rows) const;

  std::vector<Point> points_;
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
/// they bring are switched off: what is lost to them, net of what they won, stays below two steps and one part in two
/// hundred of the time spent. One thread at a time.
class DraftPlanner {
 public:
  enum class Costs : uint8_t {
    kMeasured,  ///< as steps are noted; nothing is drafted before the time of a plain step is known
    kNominal,   ///< stay as they are, whatever a step took: decisions depend on drafts alone and can be repeated
  };
  DraftPlanner(StepTimes times, double draft_seconds, Costs costs);

  /// Whether the next step of `sequences` should be drafted. Now and then it says no only to keep the comparison fresh.
  [[nodiscard]] bool wants_drafts(size_t sequences) const;
  /// Whether the next step should write the rows that drafts are made from: not while drafts are switched off, until
  /// shortly before they are tried again.
  [[nodiscard]] bool wants_rows(size_t sequences) const;
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
  void note_times(const Step& step);

  StepTimes times_;
  double draft_seconds_;
  int64_t draft_measurements_ = 0;
  Costs costs_;
  double debt_ = 0;  ///< seconds that drafts have lost and not yet won back; below 0: have won
  bool is_off_ = false;
  int64_t drafted_steps_ = 0;
  std::vector<Calibration> calibration_;
};

}  // namespace tidepool
