#pragma once

#include <openssl/sha.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/file.h"
#include "image/rgb_image.h"

namespace tidepool::image_test {

/// The first 8 bytes of the pixels' SHA-256, in hexadecimal.
inline std::string short_sum(const RgbImage& image) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> sum{};
  SHA256(image.pixels.data(), image.pixels.size(), sum.data());
  std::string text;
  for (size_t i = 0; i < 8; ++i)
    text += fmt::format("{:02x}", sum[i]);
  return text;
}

/// Every byte the upper one of a linear congruential generator's next state.
inline RgbImage noise_image(size_t width, size_t height, uint32_t seed) {
  RgbImage image(width, height);
  for (uint8_t& value : image.pixels) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<uint8_t>(seed >> 24);
  }
  return image;
}

/// A seed of the decoders' fuzz targets, which these tests read too.
inline std::string sample(const std::string& name) {
  const std::string extension = name.substr(name.rfind('.') + 1);
  const std::string folder = (extension == "jpg" ? "jpeg" : extension) + "_fuzz";
  return read_file(std::filesystem::path(TIDEPOOL_SOURCE_DIR) / "tests/corpus" / folder / name, uint64_t{1} << 20);
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace tidepool::image_test
