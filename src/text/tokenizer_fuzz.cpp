// Any bytes as a tokenizer file must load or be refused with an Error; any bytes as text must come back from their ids,
// in one piece and token by token.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_sample.h"
#include "text/unicode.h"

namespace {

using tidepool::Tokenizer;

void check_round_trip(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  TIDEPOOL_CHECK(tokenizer.decode(ids) == text, "decoding gave other bytes");
  TIDEPOOL_CHECK(tokenizer.decode(tokenizer.encode_plain(text)) == text, "decoding of plain ids gave other bytes");

  tidepool::Detokenizer detokenizer(tokenizer);
  std::string streamed;
  for (const int32_t id : ids)
    streamed += detokenizer.push(id);
  streamed += detokenizer.flush();
  TIDEPOOL_CHECK(streamed == tidepool::replace_invalid_utf8(text), "streaming gave another text");
}

void check_file(std::string_view json) {
  try {
    const Tokenizer tokenizer = Tokenizer::parse(json, "fuzz");
    check_round_trip(tokenizer, "hello <think> \xFF 中文 123");
  } catch (const tidepool::Error&) {
    // Refused, as most bytes must be.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer = Tokenizer::parse(tidepool::make_sample_tokenizer(), "sample");
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check_file(bytes);
  check_round_trip(tokenizer, bytes);
  return 0;
}
