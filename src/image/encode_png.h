#pragma once

#include <string>

#include "image/rgb_image.h"

namespace tidepool {

/// The picture as a PNG file, without loss. Throws Error(kResourceExhausted) when memory is short.
[[nodiscard]] std::string encode_png(const RgbImage& image);

}  // namespace tidepool
