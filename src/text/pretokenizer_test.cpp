#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "text/unicode.h"

namespace tidepool {
namespace {

const std::vector<SplitRule> kReleased = {SplitRule::kDigits, SplitRule::kCjk, SplitRule::kWords};
const std::vector<SplitRule> kTiny = {SplitRule::kDigits, SplitRule::kPlainWords};

std::vector<std::string> split(const std::vector<SplitRule>& rules, std::string_view text) {
  std::vector<std::string> pieces;
  PieceReader reader(rules, text);
  while (const auto piece = reader.next())
    pieces.emplace_back(*piece);
  return pieces;
}

using Pieces = std::vector<std::string>;

// ---------------------------------------------------------------------------------------------------------------------
// The slow reference: a small backtracking matcher that reads the regular expression itself.

/// Stands for a broken UTF-8 sequence: no code point, in no class.
constexpr char32_t kBrokenUnit = 0x110000;

using Characters = std::vector<std::pair<char32_t, std::string>>;

Characters characters_of(std::string_view text) {
  Characters out;
  for (size_t position = 0; position < text.size();) {
    const Utf8Unit unit = read_utf8_unit(text, position);
    const bool is_valid = unit.kind == Utf8Unit::Kind::kCodePoint;
    out.emplace_back(is_valid ? unit.code_point : kBrokenUnit, text.substr(position, unit.length));
    position += unit.length;
  }
  return out;
}

struct Set {
  std::vector<std::pair<char32_t, char32_t>> ranges;
  std::vector<UnicodeClass> classes;
  bool is_negated = false;

  [[nodiscard]] bool holds(char32_t c) const {
    const bool is_in = std::ranges::any_of(ranges, [c](auto range) { return c >= range.first && c <= range.second; }) ||
                       std::ranges::find(classes, unicode_class(c)) != classes.end();
    return is_in != is_negated;
  }
};

/// A set, how often, and whether it is (?!...) instead.
struct Item {
  Set set;
  size_t count_min = 1;
  size_t count_max = 1;
  bool is_negative_lookahead = false;
};

class Regex {
 public:
  explicit Regex(std::string_view pattern) {
    for (const auto& [code_point, bytes] : characters_of(pattern))
      pattern_ += code_point;
    alternatives_.emplace_back();
    while (at_ < pattern_.size()) {
      if (take(U"|")) {
        alternatives_.emplace_back();
      } else {
        alternatives_.back().push_back(parse_item());
      }
    }
  }

  /// The end of the match that starts at `begin`; `begin` if none does (no expression here matches the empty text).
  [[nodiscard]] size_t match(const Characters& text, size_t begin) const {
    for (const auto& alternative : alternatives_) {
      const size_t end = match_items(alternative, 0, text, begin);
      if (end != kNone) return end;
    }
    return begin;
  }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  bool take(std::u32string_view token) {
    if (std::u32string_view(pattern_).substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  void parse_escape(Set& set) {
    const char32_t c = pattern_.at(at_++);
    if (c == 'p') {
      const std::u32string_view letters = U"LMNPS";
      set.classes.push_back(static_cast<UnicodeClass>(1 + letters.find(pattern_.at(at_ + 1))));
      at_ += 3;
    } else if (c == 's') {
      set.classes.push_back(UnicodeClass::kSpace);
    } else if (c == 'S') {
      set.classes.push_back(UnicodeClass::kSpace);
      set.is_negated = true;
    } else {
      set.ranges.emplace_back(c, c);
    }
  }

  Set parse_set() {
    Set set;
    if (take(U"\\")) {
      parse_escape(set);
    } else if (take(U"[")) {
      set.is_negated = take(U"^");
      while (!take(U"]")) {
        if (take(U"\\")) {
          parse_escape(set);
          continue;
        }
        const char32_t first = pattern_.at(at_++);
        set.ranges.emplace_back(first, take(U"-") ? pattern_.at(at_++) : first);
      }
    } else {
      const char32_t c = pattern_.at(at_++);
      set.ranges.emplace_back(c, c);
    }
    return set;
  }

  Item parse_item() {
    if (take(U"(?!")) {
      Item item{parse_set(), 1, 1, true};
      EXPECT_TRUE(take(U")"));
      return item;
    }
    Item item{parse_set(), 1, 1, false};
    if (take(U"?")) {
      item.count_min = 0;
    } else if (take(U"+")) {
      item.count_max = kNone;
    } else if (take(U"*")) {
      item.count_min = 0;
      item.count_max = kNone;
    } else if (take(U"{1,3}")) {
      item.count_max = 3;
    }
    return item;
  }

  static size_t match_items(const std::vector<Item>& items, size_t index, const Characters& text, size_t position) {
    if (index == items.size()) return position;
    const Item& item = items[index];
    const auto holds = [&](size_t at) { return at < text.size() && item.set.holds(text[at].first); };
    if (item.is_negative_lookahead) return holds(position) ? kNone : match_items(items, index + 1, text, position);
    size_t count = 0;
    while (count < item.count_max && holds(position + count))
      ++count;
    for (; count + 1 > item.count_min; --count) {
      const size_t end = match_items(items, index + 1, text, position + count);
      if (end != kNone) return end;
      if (count == 0) break;
    }
    return kNone;
  }

  std::u32string pattern_;
  size_t at_ = 0;
  std::vector<std::vector<Item>> alternatives_;
};

std::vector<Characters> split_by(const Regex& regex, const Characters& piece) {
  std::vector<Characters> out;
  Characters gap;
  for (size_t position = 0; position < piece.size();) {
    const size_t end = regex.match(piece, position);
    if (end == position) {
      gap.push_back(piece[position++]);
      continue;
    }
    if (!gap.empty()) out.push_back(std::exchange(gap, {}));
    out.emplace_back(piece.begin() + static_cast<std::ptrdiff_t>(position),
                     piece.begin() + static_cast<std::ptrdiff_t>(end));
    position = end;
  }
  if (!gap.empty()) out.push_back(gap);
  return out;
}

Pieces split_by_reference(const std::vector<Regex>& regexes, std::string_view text) {
  std::vector<Characters> pieces = {characters_of(text)};
  for (const Regex& regex : regexes) {
    std::vector<Characters> next;
    for (const Characters& piece : pieces)
      std::ranges::move(split_by(regex, piece), std::back_inserter(next));
    pieces = std::move(next);
  }
  Pieces out;
  for (const Characters& piece : pieces) {
    std::string& joined = out.emplace_back();
    for (const auto& [code_point, bytes] : piece)
      joined += bytes;
  }
  return out;
}

std::vector<Regex> regexes_of(const std::vector<SplitRule>& rules) {
  std::vector<Regex> out;
  out.reserve(rules.size());
  for (const SplitRule rule : rules)
    out.emplace_back(split_rule_regexes().at(static_cast<size_t>(rule)));
  return out;
}

/// Characters of every class and of every set that an expression names, some of them broken.
const std::vector<std::string> kAlphabet = {
    "a",  "Z",  "é",  "ß",      "ж",    "ก",      "\u0301", "\u0E31", "\u20DD", "1",    "9",       "²",
    "Ⅷ",  "٣",  "!",  "_",      "~",    "…",      "¿",      "$",      "€",      "+",    "😀",       " ",
    " ",  "\t", "\r", "\n",     "\n",   "\u0085", "　",     "中",     "龥",     "龦",   "あ",      "ゟ",
    "゠", "ヿ", "한", "\u200D", "\x01", "\uE000", "\u0378", "\uFFFD", "\xFF",   "\x80", "\xE4\xB8"};

void compare_with_reference(const std::vector<SplitRule>& rules) {
  constexpr uint32_t kSeed = 20260918;
  std::mt19937 random(kSeed);
  const std::vector<Regex> regexes = regexes_of(rules);
  for (int round = 0; round < 20000; ++round) {
    // A few characters often, so that runs and repetitions of each class come up.
    const size_t alphabet_size = 2 + random() % 6;
    std::vector<std::string> alphabet;
    for (size_t i = 0; i < alphabet_size; ++i)
      alphabet.push_back(kAlphabet[random() % kAlphabet.size()]);
    std::string text;
    for (size_t length = random() % 16; length > 0; --length)
      text += alphabet[random() % alphabet.size()];
    ASSERT_EQ(split(rules, text), split_by_reference(regexes, text)) << "round " << round << " of seed " << kSeed;
  }
}

TEST(Pretokenizer, AgreesWithABacktrackingMatcherOfTheSameExpressions) {
  compare_with_reference(kReleased);
}

TEST(Pretokenizer, AgreesWithABacktrackingMatcherForSmallTestCheckpoints) {
  compare_with_reference(kTiny);
}

// ---------------------------------------------------------------------------------------------------------------------

TEST(Pretokenizer, RulesAreFoundByTheirExpression) {
  const std::vector<std::string_view> regexes = split_rule_regexes();
  ASSERT_EQ(regexes.size(), 4U);
  for (size_t i = 0; i < regexes.size(); ++i)
    EXPECT_EQ(find_split_rule(regexes[i]), static_cast<SplitRule>(i));
  EXPECT_EQ(find_split_rule("\\p{N}{1,2}"), std::nullopt);
}

/// The matchers have their own copy of the ASCII classes: it must agree with the tables.
TEST(Pretokenizer, EveryPairOfAsciiCharactersAgreesWithTheReference) {
  const std::vector<Regex> regexes = regexes_of(kReleased);
  for (int first = 0; first < 128; ++first) {
    for (int second = 0; second < 128; ++second) {
      const auto a = static_cast<char>(first);
      const auto b = static_cast<char>(second);
      const std::string text = {a, b, 'x', b, a};
      ASSERT_EQ(split(kReleased, text), split_by_reference(regexes, text)) << first << " " << second;
    }
  }
}

TEST(Pretokenizer, NoTextHasNoPieces) {
  EXPECT_EQ(split(kReleased, ""), Pieces());
  EXPECT_EQ(split({}, ""), Pieces());
}

TEST(Pretokenizer, WithoutRulesTheTextIsOnePiece) {
  EXPECT_EQ(split({}, "a b 1"), Pieces({"a b 1"}));
}

TEST(Pretokenizer, NumbersGoInThreesFromTheLeft) {
  EXPECT_EQ(split(kReleased, "1234567x"), Pieces({"123", "456", "7", "x"}));
  EXPECT_EQ(split(kReleased, "½²Ⅷ٣"), Pieces({"½²Ⅷ", "٣"}));
}

TEST(Pretokenizer, AWordTakesTheSpaceBeforeIt) {
  EXPECT_EQ(split(kReleased, "a quick\tfox"), Pieces({"a", " quick", "\tfox"}));
  EXPECT_EQ(split(kReleased, "a  quick"), Pieces({"a", " ", " quick"}));
}

TEST(Pretokenizer, ASignTakesLettersOrNewlinesBehindIt) {
  EXPECT_EQ(split(kReleased, "x.size()"), Pieces({"x", ".size", "()"}));
  EXPECT_EQ(split(kReleased, "});\n\n\nx"), Pieces({"});\n\n\n", "x"}));
}

TEST(Pretokenizer, WhiteSpaceIsCutBehindItsLastNewlineAndBeforeItsLastCharacter) {
  EXPECT_EQ(split(kReleased, "a \n \n  b"), Pieces({"a", " \n \n", " ", " b"}));
  EXPECT_EQ(split(kReleased, "a  1"), Pieces({"a", "  ", "1"}));  // the number is in another piece already
  EXPECT_EQ(split(kReleased, "a   "), Pieces({"a", "   "}));
}

TEST(Pretokenizer, BrokenUtf8CountsAsACharacterOfNoClass) {
  EXPECT_EQ(split(kReleased, "ab\xFF"), Pieces({"ab", "\xFF"}));
  EXPECT_EQ(split(kReleased, "ab\xFF\xE4\xB8"), Pieces({"ab", "\xFF\xE4\xB8"}));
  EXPECT_EQ(split(kReleased, "!\xFF."), Pieces({"!", "\xFF", "."}));
  EXPECT_EQ(split(kReleased,
                  "\xFF"
                  "ab"),
            Pieces({"\xFF"
                    "ab"}));  // as a private-use character before a word
}

/// Ten megabytes of one unit over and over. A matcher that looks at any run more than a constant number of times needs
/// hours here, and the test program's time limit ends it.
TEST(Pretokenizer, HostileTextsTakeLinearTime) {
  constexpr size_t kBytes = 2'000'000;
  for (const std::string unit :
       {" ", "\n", "a", "1", "!", "中", "\xFF", "\x01", " \n", "\n ", "a1", " a", "\t ", "\u0301"}) {
    std::string text;
    while (text.size() < kBytes)
      text += unit;
    text += "  x";  // keeps white space from reaching the end of the text
    PieceReader reader(kReleased, text);
    size_t bytes = 0;
    while (const auto piece = reader.next())
      bytes += piece->size();
    EXPECT_EQ(bytes, text.size());
  }
}

}  // namespace
}  // namespace tidepool
