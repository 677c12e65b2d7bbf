#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace tidepool {

/// Turns bytes that come in parts into valid UTF-8 that may be sent at once. Holds back at most three bytes: those that
/// further bytes may still complete to a character. What is surely broken becomes U+FFFD, one per maximal invalid
/// subpart. The parts that come out, joined, are replace_invalid_utf8 of all that went in.
class Utf8Stream {
 public:
  /// Adds bytes; returns the text that is certain now.
  [[nodiscard]] std::string push(std::string_view bytes);
  /// Ends the stream: what was held back is broken. The stream is as new afterwards.
  [[nodiscard]] std::string flush();

 private:
  std::string held_;  ///< the start of a character, up to three bytes
};

enum class SpecialTokens {
  kKept,     ///< as their text
  kSkipped,  ///< tokens flagged special are left out, as if they had not come
};

/// Turns token ids that come one by one into text that may be sent at once. Keeps the state of one stream. The
/// tokenizer must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, SpecialTokens special = SpecialTokens::kKept)
      : tokenizer_(tokenizer), special_(special) {}

  /// The text that is certain with this token; empty while a character is incomplete.
  [[nodiscard]] std::string push(int32_t id);
  /// Ends the stream, see Utf8Stream::flush.
  [[nodiscard]] std::string flush() { return stream_.flush(); }

 private:
  const Tokenizer& tokenizer_;
  SpecialTokens special_;
  Utf8Stream stream_;
};

}  // namespace tidepool
