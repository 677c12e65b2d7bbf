#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "image/plan.h"

namespace tidepool {

/// What the vision tower takes of a picture: samples as (s / 255 - 0.5) / 0.5 on bfloat16, whatever the numerics, as
/// they are the model's input. (docs/model.md 4.2)
class PatchReader {
 public:
  /// `patch` is a side in pixels.
  explicit PatchReader(size_t patch);

  [[nodiscard]] size_t values_per_patch() const { return RgbImage::kChannels * patch_ * patch_; }
  /// Patch `index` of the canvas, counted row by row: channel by channel, each of these row by row;
  /// out [values_per_patch()].
  void read(const PreparedImage& image, size_t index, std::span<float> out) const;

 private:
  size_t patch_;
  std::array<float, 256> values_{};  ///< of each sample
};

}  // namespace tidepool
