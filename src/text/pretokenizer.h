#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool {

/// A regular expression that a `tokenizer.json` may split text by, each with a matcher of our own: a general engine
/// would be a dependency, would bring other Unicode tables, and takes quadratic time or gives up on hostile texts.
enum class SplitRule : uint8_t {
  kDigits,      ///< `\p{N}{1,3}`
  kCjk,         ///< `[一-龥぀-ゟ゠-ヿ]+`: U+4E00-9FA5, U+3040-309F, U+30A0-30FF
  kWords,       ///< the third split of the released tokenizer, see find_words in pretokenizer.cpp
  kPlainWords,  ///< ` ?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|\s+`, the second split of the small test checkpoints
};

/// The rule whose expression is exactly `regex`.
[[nodiscard]] std::optional<SplitRule> find_split_rule(std::string_view regex);

/// The expressions find_split_rule knows, in the order of SplitRule.
[[nodiscard]] std::vector<std::string_view> split_rule_regexes();

/// Cuts a text into the pieces that byte pair encoding works on. Each rule runs on every piece that the rule before it
/// left; its matches and the text between them become pieces. A rule sees nothing outside its piece: the end of the
/// piece is the end of the text. Joined, the pieces are the text again; none is empty. Takes linear time for any text.
///
/// Bytes that are not UTF-8 are kept: each maximal invalid subpart counts as one character of class kOther, like an
/// unassigned code point.
class PieceReader {
 public:
  /// `rules` and `text` must outlive the reader.
  PieceReader(const std::vector<SplitRule>& rules, std::string_view text);

  /// The next piece, a part of the text, or nothing at the end.
  [[nodiscard]] std::optional<std::string_view> next() { return next_of(rules_.size()); }

 private:
  /// What a rule still has to give of the piece it is working on.
  struct Stage {
    std::string_view piece;
    size_t position = 0;     ///< everything before it was given
    size_t match_begin = 0;  ///< the match at or after `position` ...
    size_t match_end = 0;    ///< ... if this lies beyond `position`
  };

  /// The next piece after the first `rule_count` rules.
  std::optional<std::string_view> next_of(size_t rule_count);

  const std::vector<SplitRule>& rules_;
  std::vector<Stage> stages_;  ///< one per rule
  std::string_view text_;      ///< the whole text until the first rule took it
};

}  // namespace tidepool
