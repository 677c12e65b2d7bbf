#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "image/decode.h"

/// The four decoders, and what they share. Each library reports errors in its own way; here all become Error.
namespace tidepool::image_decoders {

/// A file under work.
struct Source {
  std::span<const std::byte> bytes;
  std::string_view name;  ///< of the picture, for errors
  const ImageLimits& limits;
};

[[nodiscard]] RgbImage decode_jpeg(const Source& source);
[[nodiscard]] RgbImage decode_png(const Source& source);
[[nodiscard]] RgbImage decode_webp(const Source& source);
[[nodiscard]] RgbImage decode_gif(const Source& source);

/// Throws Error(kResourceExhausted) unless a picture of this size is within the limits.
void check_size(const Source& source, uint64_t width, uint64_t height);

/// Throws Error(kCorrupt): the file contradicts itself or ends too early.
[[noreturn]] void refuse_damaged(const Source& source, std::string_view format, std::string_view what);
/// Throws Error(kUnsupported): a kind of picture that nothing here reads.
[[noreturn]] void refuse_kind(const Source& source, std::string_view format, std::string_view what);

}  // namespace tidepool::image_decoders
