#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "image/rgb_image.h"

namespace tidepool {

enum class ImageFormat : uint8_t { kJpeg, kPng, kWebp, kGif };
[[nodiscard]] std::string_view image_format_name(ImageFormat format);  ///< "JPEG", "PNG", "WebP", "GIF"

/// What a file is, by its first bytes; nothing for anything else. Labels and file names are not looked at.
[[nodiscard]] std::optional<ImageFormat> image_format_of(std::span<const std::byte> bytes);

/// Checked against the file's own header before any memory for pixels is taken.
struct ImageLimits {
  uint64_t bytes_max = uint64_t{32} << 20;   ///< of the file, as the hosted service has it
  uint64_t pixels_max = uint64_t{64} << 20;  ///< width times height: 192 MiB of RGB
  uint64_t side_max = 65'535;                ///< what JPEG and GIF can say at most
};

/// A picture's pixels as the reference sees them: RGB of 8 bits, alpha dropped (not blended), no turning by EXIF, no
/// colour management; of a 16-bit sample the upper byte; of an animation the first frame. Not thread-bound.
/// `name` is what errors call the picture. Throws Error: kUnsupported (not one of the four formats, or a kind of them
/// that nothing here reads), kCorrupt (damaged or cut short: there is no half picture), kResourceExhausted (over a
/// limit).
[[nodiscard]] RgbImage decode_image(std::span<const std::byte> bytes, const std::string& name,
                                    const ImageLimits& limits = {});

}  // namespace tidepool
