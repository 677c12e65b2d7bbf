// Any text as the link of an image record, or as base64, must give bytes or be refused with an Error; and base64 that
// is taken is the only text for its bytes.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "session/image_fetch.h"
#include "session/image_source.h"

namespace {

constexpr uint64_t kBytesMax = 4096;

void check_base64(std::string_view text) {
  try {
    const std::string bytes = tidepool::decode_base64(text, "fuzz", kBytesMax);
    TIDEPOOL_CHECK(bytes.size() <= kBytesMax, "more bytes than the limit");
    TIDEPOOL_CHECK(tidepool::encode_base64(std::as_bytes(std::span(bytes))) == text, "another text for the same bytes");
  } catch (const tidepool::Error&) {
    // Refused, as most texts must be.
  }
}

/// Where no host is named, every link must be refused, whatever a URL is made of.
const tidepool::ImageFetcher& fetcher() {
  static const tidepool::ImageFetcher none{tidepool::ImageFetchOptions()};
  return none;
}

void check_record(const std::string& text) {
  tidepool::Json record = tidepool::Json::make_object();
  record.set("url", tidepool::Json::make_string(text));
  try {
    (void)tidepool::image_record_bytes(record, "fuzz", kBytesMax, &fetcher());
    TIDEPOOL_CHECK(!tidepool::is_link(text), "a link was followed");
  } catch (const tidepool::Error&) {
    // The same.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  check_base64(text);
  check_record(text);
  const std::string encoded = tidepool::encode_base64({reinterpret_cast<const std::byte*>(data), size});
  if (size <= kBytesMax)
    TIDEPOOL_CHECK(tidepool::decode_base64(encoded, "fuzz", kBytesMax) == text, "the bytes did not come back");
  return 0;
}
