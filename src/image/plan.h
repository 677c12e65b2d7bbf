#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "image/rgb_image.h"

namespace tidepool {

/// What the vision tower takes, from the checkpoint's config.
struct ImagePlanConfig {
  int64_t patch = 0;       ///< pixels a side
  int64_t downsample = 0;  ///< patches a side of a cell, which becomes one position
  int64_t tokens_max = 0;  ///< positions of one image, delimiters included
  int64_t pixels_min = 0;  ///< smaller pictures are scaled up to about this area
};

/// How a picture of one size enters the model: a pure function of width and height. (docs/model.md 4.1)
struct ImagePlan {
  int64_t canvas_width = 0;  ///< pixels, a multiple of the patch
  int64_t canvas_height = 0;
  int64_t scaled_width = 0;  ///< of the picture on it
  int64_t scaled_height = 0;
  int64_t x = 0;  ///< of the picture's upper left corner on the canvas
  int64_t y = 0;
  int64_t patch_columns = 0;
  int64_t patch_rows = 0;
  int64_t cell_columns = 0;
  int64_t cell_rows = 0;

  /// Positions of the span: start, then per row of cells these and a row's end, then end.
  [[nodiscard]] int64_t tokens() const { return cell_rows * (cell_columns + 1) + 2; }
  [[nodiscard]] int64_t patches() const { return patch_rows * patch_columns; }
  friend bool operator==(const ImagePlan&, const ImagePlan&) = default;
};

/// Sides are at least 1. A picture may be so narrow that a scaled side is 0: nothing of it would be left.
[[nodiscard]] ImagePlan plan_image(const ImagePlanConfig& config, int64_t width, int64_t height);

/// A bound for plan_image()'s patches: all cells of the budget in full. Nothing is planned larger.
[[nodiscard]] int64_t image_patches_max(const ImagePlanConfig& config);

/// A picture on its canvas, ready for the vision tower.
struct PreparedImage {
  ImagePlan plan;
  RgbImage canvas;
};

/// Changes whenever prepare_image() may give other pixels for the same picture and config; part of an image's digest.
inline constexpr uint32_t kImagePreparationVersion = 1;

/// Scales the picture into its canvas, centred, with grey 127 around it. Throws Error(kInvalidArgument), beginning with
/// `name`, where nothing of it would be left.
[[nodiscard]] PreparedImage prepare_image(const ImagePlanConfig& config, const RgbImage& image,
                                          const std::string& name);

}  // namespace tidepool
