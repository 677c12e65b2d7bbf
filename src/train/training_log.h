#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "train/loss_plot.h"

namespace tidepool {

/// What one step of a training run reported.
struct TrainingStep {
  uint64_t stage = 0;  ///< of the recipe, from 0
  std::string stage_name;
  uint64_t step = 0;    ///< of the stage, from 1: how many are done
  uint64_t tokens = 0;  ///< rows trained on since the run began
  double loss = 0;      ///< of what is learnt from, by its weights, nats a token; of a draft head, its own
  double balance_loss = 0;
  double index_loss = 0;  ///< mean divergence of the indexers
  double rate = 0;        ///< learning rate
  double gradient_norm = 0;
  double tokens_per_second = 0;
  /// Mean loss of each part of the mixture that was learnt from, by its name in the recipe, nats a token; weights
  /// aside.
  std::map<std::string, double> part_losses{};
};

/// One line of JSON, without the line feed; numbers that are not finite are null.
[[nodiscard]] std::string log_line(const TrainingStep& step);

/// Reads the lines of a log. What follows the last line feed, which a killed run may have left, is dropped. Throws
/// Error(kCorrupt) naming the line.
[[nodiscard]] std::vector<TrainingStep> parse_training_log(std::string_view text, const std::string& name);

/// Curves of the loss, one a stage.
[[nodiscard]] std::vector<LossCurve> loss_curves(const std::vector<TrainingStep>& steps);

/// The log of a run: a file that is appended to, one line a step.
class TrainingLog {
 public:
  /// Opens it; steps behind (`stage`, `step`), which a killed run had not saved and will do again, are cut off. Throws
  /// Error.
  TrainingLog(std::filesystem::path file, uint64_t stage, uint64_t step);

  void append(const TrainingStep& step);
  /// Returns when all lines are on the medium. Throws Error(kIo).
  void sync() const;
  /// All steps, those of earlier parts of the run too.
  [[nodiscard]] const std::vector<TrainingStep>& steps() const { return steps_; }

 private:
  std::filesystem::path file_;
  std::vector<TrainingStep> steps_;
};

}  // namespace tidepool
