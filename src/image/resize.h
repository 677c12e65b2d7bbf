#pragma once

#include <cstddef>

#include "image/rgb_image.h"

namespace tidepool {

/// Scales to width x height (both at least 1) with the antialiased bicubic filter of Pillow, to its bits: weights of
/// the Keys cubic with a = -0.5, stretched by the scale where it shrinks, in fixed point with 22 fractional bits; first
/// along the rows, then along the columns, rounded to 8 bits in between. An unchanged size is a copy.
[[nodiscard]] RgbImage resize_bicubic(const RgbImage& image, size_t width, size_t height);

/// `image` on a canvas of width x height filled with `grey`, its upper left corner at (x, y), where it fits.
[[nodiscard]] RgbImage place_on_canvas(const RgbImage& image, size_t width, size_t height, size_t x, size_t y,
                                       uint8_t grey);

}  // namespace tidepool
