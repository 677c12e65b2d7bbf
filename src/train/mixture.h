#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "train/recipe.h"
#include "train/sample_packer.h"

namespace tidepool {

/// The data of one stage of a recipe: its sources, and the batches packed from them. What it is made from must outlive
/// it.
class Mixture {
 public:
  /// Tokenizes what the stage needs of the corpus, on `pool`; `corpus` may be null where it needs none. Seeds differ
  /// from stage to stage. Throws Error(kInvalidArgument) naming the part that cannot be had.
  Mixture(const Recipe& recipe, size_t stage, const SampleEncoding& encoding, const Corpus* corpus, ThreadPool& pool);

  [[nodiscard]] SamplePacker& packer() { return *packer_; }
  [[nodiscard]] const SamplePacker& packer() const { return *packer_; }
  /// What a recipe calls each part of the packer: a task, or texts.
  [[nodiscard]] const std::vector<std::string>& part_names() const { return part_names_; }

 private:
  std::vector<std::unique_ptr<SampleSource>> sources_;
  std::vector<std::string> part_names_;
  std::unique_ptr<SamplePacker> packer_;
};

/// Throws as a Mixture of the stage would, without reading any text, or the first dialogues of its tasks: what a later
/// stage lacks is better known before a run than in its third hour.
void check_mixture(const Recipe& recipe, size_t stage, const SampleEncoding& encoding, const Corpus* corpus);

/// A position in the data as numbers with names, to be kept with the rest of a run's state.
[[nodiscard]] std::vector<std::pair<std::string, uint64_t>> position_counters(const SamplePacker::Position& position);
/// The inverse. Throws Error(kCorrupt) naming a number that is missing.
[[nodiscard]] SamplePacker::Position counters_position(const std::vector<std::pair<std::string, uint64_t>>& counters);

}  // namespace tidepool
