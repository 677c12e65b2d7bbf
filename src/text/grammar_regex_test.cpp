#include "text/grammar_regex.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/json_schema.h"

namespace tidepool {
namespace {

/// The library's own ECMAScript engine as the slower reference.
TEST(GrammarRegex, AgreesWithTheStandardLibraryOnRandomTexts) {
  const std::vector<std::string> patterns = {"a",
                                             "^a",
                                             "a$",
                                             "^$",
                                             "^(a|bc)*d?$",
                                             "^a{2,3}b{0}c{1,}$",
                                             "[^ab]c",
                                             "^[a-c]+$",
                                             "x|^y|z$",
                                             "(^a|b)c",
                                             "a(b|c$)",
                                             "^(?:ab)+?c*?$",
                                             "\\d\\w\\s",
                                             "^\\D\\W\\S$",
                                             "a.c",
                                             "^[\\d\\-_]+$",
                                             "^\\.\\*\\\\$",
                                             "[]a]|b",
                                             "^a{,2}$",
                                             "^[a\\]b]+$",
                                             "^(|a|ab)(c|bcd)$",
                                             "\\x61\\u0062",
                                             "^(a?){3}$",
                                             "^[a-]+$",
                                             "^(a(b(c)?)?)?$"};
  std::mt19937 random(1);
  const std::string letters = "abcdxyz019 _-.*\\]{,2}";
  for (const std::string& pattern : patterns) {
    if (pattern == "[]a]|b" || pattern == "^a{,2}$") continue;  // the library reads these in its own way; see below
    const std::regex reference(pattern, std::regex::ECMAScript);
    const CharDfa automaton = CharDfa::from_pattern(pattern);
    for (int i = 0; i < 400; ++i) {
      std::string text;
      for (size_t length = random() % 7; text.size() < length;)
        text += letters[random() % (i % 2 == 0 ? 4 : letters.size())];
      ASSERT_EQ(automaton.accepts(text), std::regex_search(text, reference)) << pattern << " on " << text;
    }
  }
}

TEST(GrammarRegex, ReadsWhatTheReferenceReadsOtherwise) {
  EXPECT_TRUE(CharDfa::from_pattern("^a{,2}$").accepts("a{,2}"));  // no count: the brace is text
  EXPECT_TRUE(CharDfa::from_pattern("^[]$").is_empty());
  EXPECT_TRUE(CharDfa::from_pattern("^[^]$").accepts("\n"));
  EXPECT_TRUE(CharDfa::from_pattern("^\\u{1F600}$").accepts("😀"));
  EXPECT_TRUE(CharDfa::from_pattern("^\\uD83D\\uDE00$").accepts("😀"));
  EXPECT_TRUE(CharDfa::from_pattern("^.$").accepts("é"));
  EXPECT_FALSE(CharDfa::from_pattern("^.$").accepts("\n"));
  EXPECT_FALSE(CharDfa::from_pattern("^.$").accepts("\xE2\x80\xA8"));  // U+2028
  EXPECT_TRUE(CharDfa::from_pattern("^(?<year>[0-9]{4})$").accepts("2024"));
}

TEST(GrammarRegex, RefusesWhatItCannotKeep) {
  for (const char* pattern : {"(?=a)b", "(?!a)b", "(?<=a)b", "(?<!a)b", "(a)\\1",    "\\bword", "\\p{L}+", "(?i)a",
                              "a**",    "*a",     "(a",      "a)",      "[a",        "a{3,2}",  "[z-a]",   "a^b",
                              "a$b",    "^*",     "\\k<a>",  "a\\",     "a{100000}", "\\uZZZZ", "(^a)+"}) {
    EXPECT_THROW((void)CharDfa::from_pattern(pattern), Error) << pattern;
  }
}

TEST(GrammarRegex, LimitsHoldAgainstHostilePatterns) {
  const std::string deep = std::string(100, '(') + "a" + std::string(100, ')');
  for (const std::string& pattern :
       {std::string("((a{1000}){1000}){1000}"), std::string("(.*a.{20})"), std::string("((){10000}){10000}"), deep,
        std::string(5000, 'a'), std::string("^(a|b|ab)*c(a|b)*(a.{15}b|b.{15}a)$")}) {
    EXPECT_THROW((void)CharDfa::from_pattern(pattern), Error) << pattern.substr(0, 40);
  }
}

TEST(GrammarRegex, IntersectsLengthsAndExclusions) {
  const CharDfa digits = CharDfa::from_pattern("^[0-9]*$").intersect(CharDfa::from_length(2, 3));
  EXPECT_FALSE(digits.accepts("1"));
  EXPECT_TRUE(digits.accepts("12"));
  EXPECT_FALSE(digits.accepts("1234"));
  EXPECT_TRUE(CharDfa::from_pattern("^a$").intersect(CharDfa::from_length(2, CharDfa::kUnlimited)).is_empty());
  const CharDfa others = CharDfa::all_but({"a", "abc", ""});
  for (const char* text : {"", "a", "abc"})
    EXPECT_FALSE(others.accepts(text)) << text;
  for (const char* text : {"b", "ab", "abcd", "é"})
    EXPECT_TRUE(others.accepts(text)) << text;
  const CharDfa without = CharDfa::all_without("aab");
  for (const char* text : {"aab", "aaab", "xaaby"})
    EXPECT_FALSE(without.accepts(text)) << text;
  for (const char* text : {"", "aa", "abab", "aacaa"})
    EXPECT_TRUE(without.accepts(text)) << text;
}

TEST(GrammarRegex, FormatsAcceptAndRefuse) {
  const std::vector<std::pair<std::string_view, std::vector<std::string_view>>> good = {
      {"date", {"2024-02-28", "1999-12-31"}},
      {"time", {"23:59:59Z", "00:00:00.123+02:00"}},
      {"date-time", {"2024-02-28T12:00:00Z"}},
      {"duration", {"P3D", "PT5M", "P1Y2M3DT4H5M6S", "P2W"}},
      {"uuid", {"123e4567-e89b-12d3-a456-426614174000"}},
      {"ipv4", {"0.0.0.0", "255.249.199.9"}},
      {"ipv6", {"2001:db8:0:0:0:0:0:1"}},
      {"hostname", {"a.example.com", "x-1"}},
      {"email", {"a.b+c@example.com"}},
      {"uri", {"ftp://example.com:21/a/b?c=d#e", "x://a"}},
      {"json-pointer", {"", "/a~1b/0"}}};
  const std::vector<std::pair<std::string_view, std::vector<std::string_view>>> bad = {
      {"date", {"2024-02-30", "2024-13-01", "2024-04-31", "24-01-01"}},
      {"time", {"24:00:00Z", "12:00:00"}},
      {"date-time", {"2024-02-28 12:00:00Z", "2024-02-28T12:00Z"}},
      {"duration", {"P", "PT", "3D", "P1H"}},
      {"uuid", {"123e4567e89b12d3a456426614174000"}},
      {"ipv4", {"256.0.0.1", "1.2.3", "01.2.3.4"}},
      {"ipv6", {"2001:db8"}},
      {"hostname", {"-a", "a..b", ""}},
      {"email", {"a@b", "a b@example.com"}},
      {"uri", {"example.com", "x://", "x://a b"}},
      {"json-pointer", {"a", "/~2"}}};
  for (const auto& [format, texts] : good) {
    for (const std::string_view text : texts)
      EXPECT_TRUE(CharDfa::from_pattern(*string_format_pattern(format)).accepts(text)) << format << ' ' << text;
  }
  for (const auto& [format, texts] : bad) {
    for (const std::string_view text : texts)
      EXPECT_FALSE(CharDfa::from_pattern(*string_format_pattern(format)).accepts(text)) << format << ' ' << text;
  }
}

}  // namespace
}  // namespace tidepool
