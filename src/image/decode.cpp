#include "image/decode.h"

#include <fmt/format.h>

#include <cstring>

#include "image/decode_internal.h"

namespace tidepool {
namespace {

bool begins_with(std::span<const std::byte> bytes, std::string_view magic, size_t offset = 0) {
  return bytes.size() >= offset + magic.size() && std::memcmp(bytes.data() + offset, magic.data(), magic.size()) == 0;
}

/// What a file might be that is not read here, so that the remedy fits.
std::string_view guess_other(std::span<const std::byte> bytes) {
  if (begins_with(bytes, "ftyp", 4)) return "it looks like HEIC, AVIF or a video";
  if (begins_with(bytes, "BM")) return "it looks like BMP";
  if (begins_with(bytes, std::string_view("II*\0", 4)) || begins_with(bytes, std::string_view("MM\0*", 4)))
    return "it looks like TIFF";
  if (begins_with(bytes, "<svg") || begins_with(bytes, "<?xml")) return "it looks like SVG";
  if (begins_with(bytes, "%PDF")) return "it looks like PDF";
  return "its first bytes are of no picture";
}

}  // namespace

std::string_view image_format_name(ImageFormat format) {
  switch (format) {
    case ImageFormat::kJpeg: return "JPEG";
    case ImageFormat::kPng: return "PNG";
    case ImageFormat::kWebp: return "WebP";
    case ImageFormat::kGif: return "GIF";
  }
  return "unknown";
}

std::optional<ImageFormat> image_format_of(std::span<const std::byte> bytes) {
  if (begins_with(bytes, "\xff\xd8\xff")) return ImageFormat::kJpeg;
  if (begins_with(bytes, "\x89PNG\r\n\x1a\n")) return ImageFormat::kPng;
  if (begins_with(bytes, "RIFF") && begins_with(bytes, "WEBP", 8)) return ImageFormat::kWebp;
  if (begins_with(bytes, "GIF87a") || begins_with(bytes, "GIF89a")) return ImageFormat::kGif;
  return std::nullopt;
}

RgbImage decode_image(std::span<const std::byte> bytes, const std::string& name, const ImageLimits& limits) {
  if (bytes.empty()) throw Error(ErrorCode::kCorrupt, fmt::format("{}: the picture has no bytes", name));
  if (bytes.size() > limits.bytes_max) {
    throw Error(ErrorCode::kResourceExhausted,
                fmt::format("{}: the picture has {} bytes, the limit is {}; send a smaller one", name, bytes.size(),
                            limits.bytes_max));
  }
  const std::optional<ImageFormat> format = image_format_of(bytes);
  if (!format) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: not a JPEG, PNG, WebP or GIF file ({}); convert it to one", name, guess_other(bytes)));
  }
  const image_decoders::Source source{bytes, name, limits};
  switch (*format) {
    case ImageFormat::kJpeg: return image_decoders::decode_jpeg(source);
    case ImageFormat::kPng: return image_decoders::decode_png(source);
    case ImageFormat::kWebp: return image_decoders::decode_webp(source);
    case ImageFormat::kGif: return image_decoders::decode_gif(source);
  }
  return {};
}

namespace image_decoders {

void check_size(const Source& source, uint64_t width, uint64_t height) {
  const ImageLimits& limits = source.limits;
  // Sides within side_max cannot overflow the product.
  if (width >= 1 && height >= 1 && width <= limits.side_max && height <= limits.side_max &&
      width * height <= limits.pixels_max)
    return;
  if (width < 1 || height < 1) refuse_damaged(source, "picture", fmt::format("says it is {} x {}", width, height));
  throw Error(ErrorCode::kResourceExhausted,
              fmt::format("{}: the picture is {} x {}; the limit is {} pixels in all and {} a side: scale it down",
                          source.name, width, height, limits.pixels_max, limits.side_max));
}

void refuse_damaged(const Source& source, std::string_view format, std::string_view what) {
  throw Error(ErrorCode::kCorrupt, fmt::format("{}: the {} is damaged or cut short: {}; send the whole file, or save "
                                               "the picture again",
                                               source.name, format, what));
}

void refuse_kind(const Source& source, std::string_view format, std::string_view what) {
  throw Error(ErrorCode::kUnsupported, fmt::format("{}: this kind of {} is not read: {}; save the picture as 8-bit RGB",
                                                   source.name, format, what));
}

}  // namespace image_decoders
}  // namespace tidepool
