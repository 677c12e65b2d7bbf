#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/config.h"

namespace tidepool {

/// Rotary frequencies of one kind of layer, as the reference computes them: all in binary32, since the angle is
/// binary32(position) * binary32(frequency) and a last-bit difference turns far positions visibly.
/// (docs/numerics.md, "RoPE")
class RopeTable {
 public:
  /// Frequencies base^(-2i/dim) for i in [0, dim / 2), stretched by `yarn` unless it is null.
  RopeTable(int64_t dim, double base, const YarnConfig* yarn);

  [[nodiscard]] size_t pairs() const { return inverse_frequencies_.size(); }
  [[nodiscard]] std::span<const float> inverse_frequencies() const { return inverse_frequencies_; }
  /// cos and sin of the angles at `position`, each [pairs()].
  void angles(int64_t position, std::span<float> cos, std::span<float> sin) const;

 private:
  std::vector<float> inverse_frequencies_;
};

/// The two tables of a model. (docs/model.md 2.3)
struct RopeTables {
  RopeTable window;  ///< layers without global attention, and the draft head: rope_theta, never YaRN
  RopeTable global;  ///< everything of layers with global attention: compress_rope_theta and YaRN
};
/// Both tables as the config says.
[[nodiscard]] RopeTables make_rope_tables(const ModelConfig& config);

}  // namespace tidepool
