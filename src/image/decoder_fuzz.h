#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/error.h"
#include "image/decode_internal.h"
#include "image/plan.h"

/// What the fuzz targets of the four decoders share.
namespace tidepool::image_decoders {

/// Any bytes as a picture of one format, whatever their first ones say, must decode or be refused with an Error, within
/// the limits; what decodes must go through plan, scaling and canvas. The limits are small, so that a run is short; the
/// arithmetic does not depend on them.
inline void check_decoder(RgbImage (*decode)(const Source&), const uint8_t* data, size_t size) {
  constexpr ImageLimits kLimits{.bytes_max = 1U << 20, .pixels_max = 1U << 16, .side_max = 4096};
  constexpr ImagePlanConfig kPlan{.patch = 14, .downsample = 3, .tokens_max = 40, .pixels_min = 7056};
  if (size == 0 || size > kLimits.bytes_max) return;  // refused before a decoder is chosen
  try {
    const RgbImage image = decode({{reinterpret_cast<const std::byte*>(data), size}, "fuzz", kLimits});
    TIDEPOOL_CHECK(image.width * image.height <= kLimits.pixels_max, "a picture above the limit");
    TIDEPOOL_CHECK(image.pixels.size() == image.width * image.height * 3, "pixels do not fit the size");
    const PreparedImage prepared = prepare_image(kPlan, image, "fuzz");
    TIDEPOOL_CHECK(prepared.plan.tokens() <= kPlan.tokens_max, "a plan above the budget");
    TIDEPOOL_CHECK(prepared.plan.patches() <= image_patches_max(kPlan), "a plan above its bound");
  } catch (const Error&) {
    // Refused, as most bytes must be.
  }
}

}  // namespace tidepool::image_decoders
