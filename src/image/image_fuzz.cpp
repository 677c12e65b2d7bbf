// Any bytes as a picture must decode or be refused with an Error, within the limits; what decodes must go through plan,
// scaling and canvas. Seeds: pictures of every format and kind.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/error.h"
#include "image/decode.h"
#include "image/plan.h"

namespace {

/// Small, so that a run is short; the arithmetic does not depend on it.
constexpr tidepool::ImageLimits kLimits{.bytes_max = 1U << 20, .pixels_max = 1U << 16, .side_max = 4096};
constexpr tidepool::ImagePlanConfig kPlan{.patch = 14, .downsample = 3, .tokens_max = 40, .pixels_min = 7056};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const tidepool::RgbImage image =
        tidepool::decode_image({reinterpret_cast<const std::byte*>(data), size}, "fuzz", kLimits);
    TIDEPOOL_CHECK(image.width * image.height <= kLimits.pixels_max, "a picture above the limit");
    TIDEPOOL_CHECK(image.pixels.size() == image.width * image.height * 3, "pixels do not fit the size");
    const tidepool::PreparedImage prepared = tidepool::prepare_image(kPlan, image, "fuzz");
    TIDEPOOL_CHECK(prepared.plan.tokens() <= kPlan.tokens_max, "a plan above the budget");
    TIDEPOOL_CHECK(prepared.plan.patches() <= image_patches_max(kPlan), "a plan above its bound");
  } catch (const tidepool::Error&) {
    // Refused, as most bytes must be.
  }
  return 0;
}
