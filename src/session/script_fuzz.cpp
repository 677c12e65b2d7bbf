#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "session/script.h"
#include "text/tokenizer_sample.h"

/// Any file is read or refused; what is read gives tokens for some prompt.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tidepool::Tokenizer tokenizer = tidepool::Tokenizer::parse(tidepool::make_sample_tokenizer(), "sample");
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto script = tidepool::Script::parse(text, "fuzz", tokenizer, 1);
    (void)script->next("a prompt");
  } catch (const tidepool::Error&) {
    // refused
  }
  return 0;
}
