#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool {

/// Looks for several strings in a text that comes byte by byte (Knuth-Morris-Pratt, one automaton per string), so that
/// no byte is ever read twice however the text is cut.
class StreamMatcher {
 public:
  /// No pattern may be empty.
  explicit StreamMatcher(std::vector<std::string> patterns);

  /// Reads one byte. The pattern that ends with it, if any: the longest when several do. The matcher starts anew after
  /// a match.
  std::optional<size_t> feed(char byte);
  /// Reads a text that must not complete a pattern.
  void prime(std::string_view text);
  void reset();

  /// How many of the last bytes may still become part of a match.
  [[nodiscard]] size_t held() const;
  [[nodiscard]] const std::string& pattern(size_t index) const { return patterns_[index].text; }
  [[nodiscard]] bool is_empty() const { return patterns_.empty(); }

 private:
  struct Pattern {
    std::string text;
    /// fallback[i]: length of the longest proper suffix of the first i bytes that is also their prefix.
    std::vector<size_t> fallback;
    /// How many bytes match at present.
    size_t matched = 0;
  };
  std::vector<Pattern> patterns_;
};

}  // namespace tidepool
