#include "session/image_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "session/image_fetch.h"

namespace tidepool {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kNoDigit = 255;

constexpr std::array<uint8_t, 256> make_digits() {
  std::array<uint8_t, 256> digits{};
  digits.fill(kNoDigit);
  for (size_t i = 0; i < kAlphabet.size(); ++i)
    digits[static_cast<uint8_t>(kAlphabet[i])] = static_cast<uint8_t>(i);
  return digits;
}
constexpr std::array<uint8_t, 256> kDigits = make_digits();

bool begins_with_ignoring_case(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), text.begin(), [](char a, char b) {
           return a == std::tolower(static_cast<unsigned char>(b));
         });
}

/// "data:image/png;base64,....": what stands behind the comma. The media type is a label, which nothing relies on.
std::string_view data_url_payload(std::string_view url, std::string_view path) {
  constexpr std::string_view kScheme = "data:";
  // Long enough for any media type with parameters; the payload itself is not searched.
  constexpr size_t kHeaderMax = 256;
  if (!begins_with_ignoring_case(url, kScheme)) {
    refuse_argument(path, "must be a data URL, data:image/...;base64,...; files of the server are never read");
  }
  const size_t comma = url.substr(0, kHeaderMax).find(',');
  if (comma == std::string_view::npos) refuse_argument(path, "this data URL has no comma in front of its data");
  constexpr std::string_view kEncoding = ";base64";
  const std::string_view header = url.substr(0, comma);
  if (header.size() < kEncoding.size() ||
      !begins_with_ignoring_case(header.substr(header.size() - kEncoding.size()), kEncoding))
    refuse_argument(path, "this data URL is not in base64; send data:image/...;base64,...");
  return url.substr(comma + 1);
}

const std::string& string_member(const Json& object, std::string_view key, std::string_view path) {
  const Json* value = object.find(key);
  if (value == nullptr || !value->is_string()) refuse_argument(path, fmt::format("needs \"{}\", a string", key));
  return value->as_string();
}

}  // namespace

std::string decode_base64(std::string_view text, std::string_view path, uint64_t bytes_max) {
  if (text.size() % 4 != 0) {
    refuse_argument(
        path,
        fmt::format("base64 comes in groups of 4 characters, and here are {}; pad the last one with =", text.size()));
  }
  const size_t padding = text.ends_with("==") ? 2 : (text.ends_with('=') ? 1 : 0);
  const uint64_t bytes = text.size() / 4 * 3 - padding;
  if (bytes > bytes_max) {
    throw Error(ErrorCode::kResourceExhausted,
                fmt::format("{}: the file has {} bytes, the limit is {}; send a smaller one", path, bytes, bytes_max));
  }
  std::string result;
  result.reserve(bytes + 2);
  const size_t digits = text.size() - padding;
  uint32_t group = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t digit = i < digits ? kDigits[static_cast<uint8_t>(text[i])] : 0;
    if (digit == kNoDigit) {
      refuse_argument(
          path, fmt::format("character {} is not base64; use the standard alphabet, without line ends or spaces", i));
    }
    group = group << 6 | digit;
    if (i % 4 != 3) continue;
    result.push_back(static_cast<char>(group >> 16));
    result.push_back(static_cast<char>(group >> 8));
    result.push_back(static_cast<char>(group));
    group = 0;
  }
  // Two texts for the same bytes would be two names for one picture; and a cut text often ends so.
  if (std::any_of(result.begin() + static_cast<ptrdiff_t>(bytes), result.end(), [](char c) { return c != 0; }))
    refuse_argument(path, "the last base64 group has bits behind the end of the data; it was cut or damaged");
  result.resize(bytes);
  return result;
}

std::string encode_base64(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t begin = 0; begin < bytes.size(); begin += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - begin);
    uint32_t group = 0;
    for (size_t i = 0; i < 3; ++i)
      group = group << 8 | (i < count ? static_cast<uint8_t>(bytes[begin + i]) : 0U);
    for (size_t i = 0; i < 4; ++i)
      text.push_back(i <= count ? kAlphabet[group >> (18 - 6 * i) & 63] : '=');
  }
  return text;
}

std::string image_record_bytes(const Json& record, const std::string& path, uint64_t bytes_max,
                               const ImageFetcher* fetcher) {
  const Json* source = record.find("source");
  const Json& holder = source != nullptr && source->is_object() ? *source : record;
  const std::string inner = &holder == &record ? path : path + ".source";
  if (holder.find("url") != nullptr) {
    const std::string& url = string_member(holder, "url", inner);
    if (!is_link(url)) return decode_base64(data_url_payload(url, inner), inner, bytes_max);
    if (fetcher != nullptr) return fetcher->fetch(url, inner, bytes_max);
    refuse_argument(
        inner,
        "links are not followed, unless the server is told from where (--allowed-media-domains); send the picture "
        "itself as data:image/...;base64,...");
  }
  if (holder.find("data") != nullptr) return decode_base64(string_member(holder, "data", inner), inner, bytes_max);
  refuse_argument(inner, "an image needs a url, data:image/...;base64,..., or base64 under data");
}

ContentBlock make_image_block(std::span<const std::byte> bytes) {
  std::string_view type = "application/octet-stream";
  if (const std::optional<ImageFormat> format = image_format_of(bytes)) {
    switch (*format) {
      case ImageFormat::kJpeg: type = "image/jpeg"; break;
      case ImageFormat::kPng: type = "image/png"; break;
      case ImageFormat::kWebp: type = "image/webp"; break;
      case ImageFormat::kGif: type = "image/gif"; break;
    }
  }
  ContentBlock block;
  block.kind = ContentBlock::Kind::kImage;
  block.image = Json::make_object();
  block.image.set("type", Json::make_string("image"));
  block.image.set("url", Json::make_string(fmt::format("data:{};base64,{}", type, encode_base64(bytes))));
  return block;
}

}  // namespace tidepool
