#include "text/unicode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tidepool {
namespace {

constexpr char32_t kCodePointCount = 0x110000;

bool is_surrogate(char32_t code_point) {
  return code_point >= 0xD800 && code_point < 0xE000;
}

TEST(Unicode, ClassesAreThoseOfTheReleasedTokenizer) {
  std::ifstream file(TIDEPOOL_GOLDEN_DIR "/tokenizer/unicode_classes.json");
  ASSERT_TRUE(file);
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::vector<UnicodeClass> expected(kCodePointCount, UnicodeClass::kOther);
  const std::vector<std::pair<std::string, UnicodeClass>> names = {
      {"L", UnicodeClass::kLetter},      {"M", UnicodeClass::kMark},   {"N", UnicodeClass::kNumber},
      {"P", UnicodeClass::kPunctuation}, {"S", UnicodeClass::kSymbol}, {"s", UnicodeClass::kSpace}};
  for (const auto& [name, value] : names) {
    for (const auto& range : golden.at("classes").at(name)) {
      for (auto c = range[0].get<size_t>(); c <= range[1].get<size_t>(); ++c)
        expected[c] = value;
    }
  }
  for (char32_t c = 0; c < kCodePointCount; ++c)
    ASSERT_EQ(unicode_class(c), expected[c]) << std::hex << uint32_t{c};
  EXPECT_EQ(unicode_class(kCodePointCount), UnicodeClass::kOther);
  EXPECT_EQ(unicode_class(0xFFFFFFFF), UnicodeClass::kOther);
}

/// Characters with a decomposition or lower case that are newer than Unicode 14.0.
bool is_newer_than_unicode_14(char32_t code_point) {
  constexpr std::array<std::pair<char32_t, char32_t>, 10> kRanges = {{{0x1C89, 0x1C89},
                                                                      {0xA7CB, 0xA7CC},
                                                                      {0xA7DA, 0xA7DC},
                                                                      {0x105C9, 0x105E4},
                                                                      {0x10D50, 0x10D65},
                                                                      {0x11383, 0x113C8},
                                                                      {0x16121, 0x16128},
                                                                      {0x16D68, 0x16D6A},
                                                                      {0x1CCD6, 0x1CCF9},
                                                                      {0x1E030, 0x1E06D}}};
  return std::ranges::any_of(
      kRanges, [code_point](const auto& range) { return code_point >= range.first && code_point <= range.second; });
}

/// The tables come from a JavaScript engine; the expected sum from another source, Python 3.11 with Unicode 14.0:
///
///   import unicodedata
///   total, count = 0xcbf29ce484222325, 0
///   for c in map(chr, range(0x110000)):
///       decomposed, lower = unicodedata.normalize("NFKD", c), c.lower()
///       if (decomposed == c and lower == c) or c == "\u0130": continue
///       count += 1
///       for value in map(ord, [c, *decomposed, lower]):
///           for shift in (0, 8, 16, 24):
///               total = (total ^ (value >> shift & 255)) * 0x100000001b3 % 2**64
///   print(count, hex(total))
TEST(Unicode, DecompositionAndLowerCaseAgreeWithAnIndependentSource) {
  uint64_t total = 0xCBF29CE484222325;
  size_t count = 0;
  for (char32_t c = 0; c < kCodePointCount; ++c) {
    if (c == 0x130 || is_newer_than_unicode_14(c)) continue;
    std::u32string values(1, c);
    append_compatibility_decomposition(c, values);
    values += to_lower(c);
    if (values == std::u32string(3, c)) continue;
    ++count;
    for (const char32_t value : values) {
      for (const uint32_t shift : {0U, 8U, 16U, 24U})
        total = (total ^ (value >> shift & 255)) * 0x100000001B3;
    }
  }
  EXPECT_EQ(count, 17939U);
  EXPECT_EQ(total, 0x18D1BCB7466BFAEU);
}

TEST(Unicode, DecompositionOfHandPickedCharacters) {
  const auto decompose = [](char32_t code_point) {
    std::u32string out;
    append_compatibility_decomposition(code_point, out);
    return out;
  };
  EXPECT_EQ(decompose(U'a'), U"a");
  EXPECT_EQ(decompose(U'\u00E9'), U"e\u0301");
  EXPECT_EQ(decompose(U'\uFB03'), U"ffi");
  EXPECT_EQ(decompose(U'\uAC01'), U"\u1100\u1161\u11A8");  // a syllable with a trailing consonant
  EXPECT_EQ(decompose(U'\uAC00'), U"\u1100\u1161");        // and one without
  EXPECT_EQ(decompose(U'\uD7A3'), U"\u1112\u1175\u11C2");  // the last syllable
  EXPECT_EQ(decompose(U'\uFF5C'), U"|");
  EXPECT_EQ(decompose(U'\U0001D7D9'), U"1");
}

TEST(Unicode, LowerCaseOfHandPickedCharacters) {
  EXPECT_EQ(to_lower(U'A'), U'a');
  EXPECT_EQ(to_lower(U'Z'), U'z');
  EXPECT_EQ(to_lower(U'['), U'[');
  EXPECT_EQ(to_lower(U'\u0100'), U'\u0101');
  EXPECT_EQ(to_lower(U'\u0101'), U'\u0101');
  EXPECT_EQ(to_lower(U'\u03A3'), U'\u03C3');  // no final form
  EXPECT_EQ(to_lower(U'\u0130'), U'\u0130');
  EXPECT_EQ(to_lower(U'\u1E9E'), U'\u00DF');
}

TEST(Unicode, EveryCodePointSurvivesUtf8) {
  for (char32_t c = 0; c < kCodePointCount; ++c) {
    if (is_surrogate(c)) continue;
    std::string bytes;
    append_utf8(c, bytes);
    const Utf8Unit unit = read_utf8_unit(bytes, 0);
    ASSERT_EQ(unit.kind, Utf8Unit::Kind::kCodePoint);
    ASSERT_EQ(unit.code_point, c);
    ASSERT_EQ(unit.length, bytes.size());
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const Utf8Unit part = read_utf8_unit(std::string_view(bytes).substr(0, cut), 0);
      ASSERT_EQ(part.kind, Utf8Unit::Kind::kTruncated);
      ASSERT_EQ(part.length, cut);
    }
  }
}

TEST(Unicode, BrokenUtf8IsReplacedByMaximalSubparts) {
  const std::string r(kReplacementText);
  EXPECT_EQ(replace_invalid_utf8("a\x80z"), "a" + r + "z");
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF"), r + r);                  // overlong
  EXPECT_EQ(replace_invalid_utf8("\xE0\x80\x80"), r + r + r);          // overlong
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), r + r + r + r);  // beyond U+10FFFF
  EXPECT_EQ(replace_invalid_utf8("\xF5\xFF"), r + r);                  // no such first byte
  EXPECT_EQ(replace_invalid_utf8("\xE4\xB8"), r);                      // cut off
  EXPECT_EQ(replace_invalid_utf8("\xE4\xB8!"), r + "!");               // broken off
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98\xF0\x9F"), r + r);      // one begun inside another
  // Unicode 16.0 table 3-11, the example of this rule.
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

}  // namespace
}  // namespace tidepool
