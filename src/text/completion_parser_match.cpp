#include "text/completion_parser_match.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tidepool {

StreamMatcher::StreamMatcher(std::vector<std::string> patterns) {
  for (std::string& text : patterns) {
    TIDEPOOL_CHECK(!text.empty(), "a pattern is empty");
    std::vector<size_t> fallback(text.size() + 1, 0);
    for (size_t i = 1, k = 0; i < text.size(); ++i) {
      while (k > 0 && text[i] != text[k])
        k = fallback[k];
      if (text[i] == text[k]) ++k;
      fallback[i + 1] = k;
    }
    patterns_.push_back({std::move(text), std::move(fallback), 0});
  }
}

std::optional<size_t> StreamMatcher::feed(char byte) {
  std::optional<size_t> found;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    Pattern& pattern = patterns_[i];
    size_t& k = pattern.matched;
    while (k > 0 && pattern.text[k] != byte)
      k = pattern.fallback[k];
    if (pattern.text[k] == byte) ++k;
    if (k < pattern.text.size()) continue;
    k = pattern.fallback[k];
    if (!found || pattern.text.size() > patterns_[*found].text.size()) found = i;
  }
  if (found) reset();
  return found;
}

void StreamMatcher::prime(std::string_view text) {
  for (const char byte : text)
    TIDEPOOL_CHECK(!feed(byte), "the text completes a pattern");
}

void StreamMatcher::reset() {
  for (Pattern& pattern : patterns_)
    pattern.matched = 0;
}

size_t StreamMatcher::held() const {
  size_t most = 0;
  for (const Pattern& pattern : patterns_)
    most = std::max(most, pattern.matched);
  return most;
}

}  // namespace tidepool
