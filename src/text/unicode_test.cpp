#include "text/unicode.h"

#include <gtest/gtest.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
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

/// Every assigned character through ICU's NFKD and lower case, which may know fewer characters but no other answers.
TEST(Unicode, DecompositionAndLowerCaseAgreeWithIcu) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfkd = icu::Normalizer2::getNFKDInstance(status);
  ASSERT_TRUE(U_SUCCESS(status) != 0);
  size_t compared = 0;
  for (char32_t c = 0; c < kCodePointCount; ++c) {
    const auto icu_code_point = static_cast<UChar32>(c);
    if (is_surrogate(c) || u_isdefined(icu_code_point) == 0) continue;
    ++compared;
    const icu::UnicodeString expected = nfkd->normalize(icu::UnicodeString(icu_code_point), status);
    std::u32string ours;
    append_compatibility_decomposition(c, ours);
    ASSERT_EQ(ours.size(), static_cast<size_t>(expected.countChar32())) << std::hex << uint32_t{c};
    for (size_t i = 0; i < ours.size(); ++i) {
      const auto at = expected.moveIndex32(0, static_cast<int32_t>(i));
      ASSERT_EQ(static_cast<UChar32>(ours[i]), expected.char32At(at)) << std::hex << uint32_t{c};
    }
    if (c != 0x130) {
      ASSERT_EQ(to_lower(c), static_cast<char32_t>(u_tolower(icu_code_point))) << std::hex << uint32_t{c};
    }
  }
  EXPECT_GT(compared, 280000U);  // Unicode 15.0 assigns 149,186 characters and 137,468 for private use.
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
