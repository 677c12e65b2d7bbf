#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool {

/// A deterministic automaton over Unicode scalar values (no surrogates): a set of strings. Every state can still reach
/// an accepting one, except that the start of an empty set cannot.
class CharDfa {
 public:
  struct Edge {
    char32_t first = 0;
    char32_t last = 0;
    uint32_t target = 0;
  };
  struct State {
    std::vector<Edge> edges;  ///< ascending, without overlap
    bool is_accepting = false;
  };
  static constexpr size_t kStatesMax = 32'768;
  /// No upper limit of a length.
  static constexpr uint32_t kUnlimited = UINT32_MAX;

  /// The strings in which `pattern` finds a match, with the meaning that ECMA-262 gives it (as JSON Schema wants).
  /// Supported: literals, `.`, classes with ranges and negation, \d \w \s and their negations, the usual escapes,
  /// groups (captures and names have no meaning), `|`, `* + ? {n} {n,} {n,m}` (also lazy), and `^` and `$` where they
  /// begin or end an alternative of the whole pattern. Throws Error(kInvalidArgument) naming the position and what is
  /// not supported (look-around, back-references, \b, \p, flags) or which limit is exceeded.
  [[nodiscard]] static CharDfa from_pattern(std::string_view pattern);
  /// All strings of so many characters.
  [[nodiscard]] static CharDfa from_length(uint32_t chars_min, uint32_t chars_max);
  /// All strings but these (UTF-8).
  [[nodiscard]] static CharDfa all_but(const std::vector<std::string>& texts);
  /// All strings in which `text` (UTF-8, not empty) does not occur.
  [[nodiscard]] static CharDfa all_without(std::string_view text);

  /// Throws Error(kInvalidArgument) when the result has more than kStatesMax states.
  [[nodiscard]] CharDfa intersect(const CharDfa& other) const;
  /// `text` is UTF-8.
  [[nodiscard]] bool accepts(std::string_view text) const;
  [[nodiscard]] bool is_empty() const;
  /// Never empty; the first one is the start.
  [[nodiscard]] const std::vector<State>& states() const { return states_; }

 private:
  friend class CharNfa;
  CharDfa() = default;
  void trim();

  std::vector<State> states_;
};

}  // namespace tidepool
