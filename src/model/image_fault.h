#pragma once

#include <cstdint>

namespace tidepool {

/// A mistake about images, made on purpose to see that a test notices it.
enum class ImageFault : uint8_t {
  kNone,
  kTextRouting,     ///< image positions are routed with the bias of text
  kOpenEngram,      ///< the gates of image positions stay open
  kHashedImages,    ///< n-grams look back into images, as if these were text
  kPatchMajorCell,  ///< a cell's patches one after the other, instead of channel by channel
};

}  // namespace tidepool
