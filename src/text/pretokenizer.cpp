#include "text/pretokenizer.h"

#include <array>

#include "base/check.h"
#include "text/unicode.h"

namespace tidepool {
namespace {

// Indexed by SplitRule.
constexpr std::array<std::string_view, 4> kRegexes = {
    R"(\p{N}{1,3})",
    "[一-龥぀-ゟ゠-ヿ]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)"
    "\r\n"
    R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)"
    "\r\n"
    R"(]*|\s*[)"
    "\r\n"
    R"(]+|\s+(?!\S)|\s+)",
    R"( ?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|\s+)",
};

struct Match {
  size_t begin = 0;
  size_t end = 0;  ///< equal to begin: no match
};

/// A character of a piece and where the next one starts. Past the end: class kOther and length 0.
struct Character {
  char32_t code_point = 0;
  UnicodeClass unicode_class = UnicodeClass::kOther;
  size_t end = 0;

  [[nodiscard]] bool is_word() const {
    return unicode_class == UnicodeClass::kLetter || unicode_class == UnicodeClass::kMark;
  }
  [[nodiscard]] bool is_sign() const {
    return unicode_class == UnicodeClass::kPunctuation || unicode_class == UnicodeClass::kSymbol;
  }
  [[nodiscard]] bool is_space() const { return unicode_class == UnicodeClass::kSpace; }
  [[nodiscard]] bool is_number() const { return unicode_class == UnicodeClass::kNumber; }
  [[nodiscard]] bool is_newline() const { return code_point == '\r' || code_point == '\n'; }
  [[nodiscard]] bool is_ascii_letter() const {
    return (code_point >= 'A' && code_point <= 'Z') || (code_point >= 'a' && code_point <= 'z');
  }
  /// The first class of kWords lists all 32 signs of ASCII.
  [[nodiscard]] bool is_ascii_sign() const { return code_point < 0x80 && is_sign(); }
  /// U+3040-309F and U+30A0-30FF of kCjk are one range.
  [[nodiscard]] bool is_cjk() const {
    return (code_point >= 0x4E00 && code_point <= 0x9FA5) || (code_point >= 0x3040 && code_point <= 0x30FF);
  }
};

constexpr UnicodeClass ascii_class(char32_t code_point) {
  const std::string_view symbols = "$+<=>^`|~";
  if (code_point == ' ' || (code_point >= '\t' && code_point <= '\r')) return UnicodeClass::kSpace;
  if (code_point < ' ' || code_point == 0x7F) return UnicodeClass::kOther;
  if (code_point >= '0' && code_point <= '9') return UnicodeClass::kNumber;
  const char32_t small = code_point | 0x20;
  if (small >= 'a' && small <= 'z') return UnicodeClass::kLetter;
  const bool is_symbol = symbols.find(static_cast<char>(code_point)) != std::string_view::npos;
  return is_symbol ? UnicodeClass::kSymbol : UnicodeClass::kPunctuation;
}

/// The classes of ASCII once more, so that most texts are read without a call (measured on English: 60 MB/s, not 16).
constexpr std::array<UnicodeClass, 128> kAsciiClasses = [] {
  std::array<UnicodeClass, 128> classes{};
  for (char32_t c = 0; c < classes.size(); ++c)
    classes[c] = ascii_class(c);
  return classes;
}();

Character read(std::string_view piece, size_t position) {
  if (position >= piece.size()) return {0, UnicodeClass::kOther, position};
  const auto byte = static_cast<uint8_t>(piece[position]);
  if (byte < kAsciiClasses.size()) return {byte, kAsciiClasses[byte], position + 1};
  const Utf8Unit unit = read_utf8_unit(piece, position);
  // A broken sequence must not count as U+FFFD, which is a symbol.
  if (unit.kind != Utf8Unit::Kind::kCodePoint) return {0, UnicodeClass::kOther, position + unit.length};
  return {unit.code_point, unicode_class(unit.code_point), position + unit.length};
}

/// Behind the longest run from `position` on of characters that satisfy `predicate`, a member of Character.
template <typename Predicate>
size_t skip(std::string_view piece, size_t position, Predicate predicate) {
  while (position < piece.size()) {
    const Character character = read(piece, position);
    if (!(character.*predicate)()) break;
    position = character.end;
  }
  return position;
}

Match find_digits(std::string_view piece, size_t from) {
  for (size_t begin = from; begin < piece.size();) {
    Character character = read(piece, begin);
    if (!character.is_number()) {
      begin = character.end;
      continue;
    }
    size_t end = character.end;
    for (int count = 1; count < 3; ++count) {
      character = read(piece, end);
      if (!character.is_number()) break;
      end = character.end;
    }
    return {begin, end};
  }
  return {piece.size(), piece.size()};
}

Match find_cjk(std::string_view piece, size_t from) {
  for (size_t begin = from; begin < piece.size();) {
    const Character character = read(piece, begin);
    if (character.is_cjk()) return {begin, skip(piece, character.end, &Character::is_cjk)};
    begin = character.end;
  }
  return {piece.size(), piece.size()};
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+` at a white-space character. The greedy \s* takes the whole run and gives characters
/// back until a newline follows, so the first alternative ends behind the run's last newline. The second needs white
/// space or the end behind it: the whole run at the end, else all but its last character. The third takes what is left.
/// Linear over a text: a run is looked at twice, as what follows its last newline has none.
size_t match_space(std::string_view piece, const Character& first, size_t begin) {
  size_t behind_newline = begin;
  size_t last_begin = begin;
  size_t end = begin;
  for (Character character = first; character.is_space(); character = read(piece, end)) {
    last_begin = end;
    end = character.end;
    if (character.is_newline()) behind_newline = end;
  }
  if (behind_newline > begin) return behind_newline;
  const bool is_one_character = last_begin == begin;
  return end == piece.size() || is_one_character ? end : last_begin;
}

/// The end of the match of kWords that starts at `first`, or `begin` when none does. The alternatives in order:
/// 1. `[ASCII sign][A-Za-z]+`
/// 2. `[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+`; a mark may be taken for the prefix, with the same end
/// 3. ` ?[\p{P}\p{S}]+[\r\n]*`
/// 4. to 6. white space, see match_space.
size_t match_words(std::string_view piece, const Character& first, size_t begin) {
  if (first.is_word()) return skip(piece, first.end, &Character::is_word);
  const Character second = read(piece, first.end);
  if (first.is_ascii_sign() && second.is_ascii_letter()) {
    return skip(piece, second.end, &Character::is_ascii_letter);
  }
  if (!first.is_sign() && !first.is_newline() && second.is_word()) {
    return skip(piece, second.end, &Character::is_word);
  }
  if (first.is_sign() || (first.code_point == ' ' && second.is_sign())) {
    return skip(piece, skip(piece, first.end, &Character::is_sign), &Character::is_newline);
  }
  return first.is_space() ? match_space(piece, first, begin) : begin;
}

/// The same for kPlainWords.
size_t match_plain_words(std::string_view piece, const Character& first, size_t begin) {
  const Character second = first.code_point == ' ' ? read(piece, first.end) : first;
  if (second.is_word()) return skip(piece, second.end, &Character::is_word);
  if (second.is_sign()) return skip(piece, second.end, &Character::is_sign);
  return first.is_space() ? skip(piece, first.end, &Character::is_space) : begin;
}

/// The first place from `from` on where `match` finds something.
template <typename MatchAt>
Match find_first(std::string_view piece, size_t from, MatchAt match) {
  for (size_t begin = from; begin < piece.size();) {
    const Character first = read(piece, begin);
    const size_t end = match(piece, first, begin);
    if (end > begin) return {begin, end};
    begin = first.end;
  }
  return {piece.size(), piece.size()};
}

Match find_match(SplitRule rule, std::string_view piece, size_t from) {
  switch (rule) {
    case SplitRule::kDigits: return find_digits(piece, from);
    case SplitRule::kCjk: return find_cjk(piece, from);
    case SplitRule::kWords: return find_first(piece, from, match_words);
    case SplitRule::kPlainWords: return find_first(piece, from, match_plain_words);
  }
  TIDEPOOL_CHECK(false, "no such split rule");
}

}  // namespace

std::optional<SplitRule> find_split_rule(std::string_view regex) {
  for (size_t i = 0; i < kRegexes.size(); ++i) {
    if (kRegexes[i] == regex) return static_cast<SplitRule>(i);
  }
  return std::nullopt;
}

std::vector<std::string_view> split_rule_regexes() {
  return {kRegexes.begin(), kRegexes.end()};
}

PieceReader::PieceReader(const std::vector<SplitRule>& rules, std::string_view text)
    : rules_(rules), stages_(rules.size()), text_(text) {}

std::optional<std::string_view> PieceReader::next_of(size_t rule_count) {
  if (rule_count == 0) {
    if (text_.empty()) return std::nullopt;
    const std::string_view whole = text_;
    text_ = {};
    return whole;
  }
  Stage& stage = stages_[rule_count - 1];
  if (stage.position == stage.piece.size()) {
    const std::optional<std::string_view> piece = next_of(rule_count - 1);
    if (!piece) return std::nullopt;
    stage = {*piece, 0, 0, 0};
  }
  if (stage.match_end <= stage.position) {
    const Match match = find_match(rules_[rule_count - 1], stage.piece, stage.position);
    stage.match_begin = match.begin;
    stage.match_end = match.end;
  }
  const size_t begin = stage.position;
  stage.position = begin < stage.match_begin ? stage.match_begin : stage.match_end;
  return stage.piece.substr(begin, stage.position - begin);
}

}  // namespace tidepool
