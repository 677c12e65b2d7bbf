#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tidepool {

/// A picture of 8-bit RGB, row-major, without padding. Sizes are positive.
struct RgbImage {
  static constexpr size_t kChannels = 3;

  size_t width = 0;
  size_t height = 0;
  std::vector<uint8_t> pixels;  ///< [height, width, 3]

  RgbImage() = default;
  /// All pixels of one grey.
  RgbImage(size_t width_in, size_t height_in, uint8_t grey = 0)
      : width(width_in), height(height_in), pixels(width_in * height_in * kChannels, grey) {}

  [[nodiscard]] std::span<uint8_t> row(size_t y) { return {pixels.data() + y * width * kChannels, width * kChannels}; }
  [[nodiscard]] std::span<const uint8_t> row(size_t y) const {
    return {pixels.data() + y * width * kChannels, width * kChannels};
  }
  friend bool operator==(const RgbImage&, const RgbImage&) = default;
};

}  // namespace tidepool
