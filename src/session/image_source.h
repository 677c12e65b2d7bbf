#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "image/decode.h"
#include "text/chat_encoding.h"

namespace tidepool {

class ImageFetcher;

/// The bytes of base64 text (RFC 4648, section 4): the standard alphabet, padded, nothing else in between. `path` is
/// the field's, for errors. Throws Error: kInvalidArgument with the place, kResourceExhausted above `bytes_max`.
[[nodiscard]] std::string decode_base64(std::string_view text, std::string_view path, uint64_t bytes_max);

/// The other way.
[[nodiscard]] std::string encode_base64(std::span<const std::byte> bytes);

/// The file inside an image record of a conversation (ContentBlock::image): a data URL with base64, or base64 under
/// "source" or "data"; a link if there is a fetcher for it, which may be null. Files of this machine are refused.
/// Errors as decode_base64 and ImageFetcher::fetch, beginning with `path`.
[[nodiscard]] std::string image_record_bytes(const Json& record, const std::string& path, uint64_t bytes_max,
                                             const ImageFetcher* fetcher = nullptr);

/// A part of a message that holds the picture in `bytes` as a data URL. The bytes are those of a picture file.
[[nodiscard]] ContentBlock make_image_block(std::span<const std::byte> bytes);

}  // namespace tidepool
