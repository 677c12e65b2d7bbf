#include "text/tokenizer_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace tidepool {
namespace {

TEST(AddedTokens, LeftmostThenLongest) {
  AddedTokenMatcher matcher;
  int32_t next = 0;
  for (const std::string content : {"<a>", "<a>bc", "b", "bcd", "<a>bcde"})
    matcher.add(content, next++);
  matcher.finish();
  const auto check = [&](std::string_view text, size_t from, size_t begin, size_t bytes, int32_t id) {
    const auto match = matcher.find(text, from);
    ASSERT_TRUE(match.has_value());
    EXPECT_EQ(match->begin, begin);
    EXPECT_EQ(match->bytes, bytes);
    EXPECT_EQ(match->id, id);
  };
  check("x<a>bcd", 0, 1, 5, 1);   // the longer one, and not "bcd", which begins later
  check("x<a>bcde", 0, 1, 7, 4);  // the longest
  check("<a<a>", 0, 2, 3, 0);
  check("<a>bcd", 1, 3, 3, 3);  // only from there on
  EXPECT_FALSE(matcher.find("<a<a <", 0).has_value());
  EXPECT_FALSE(matcher.find("", 0).has_value());
}

TEST(AddedTokens, NoneAreFoundWhereThereAreNone) {
  AddedTokenMatcher matcher;
  matcher.finish();
  EXPECT_FALSE(matcher.find("<think>", 0).has_value());
  EXPECT_FALSE(matcher.find_exactly("").has_value());
}

TEST(AddedTokens, ExactTextsOnly) {
  AddedTokenMatcher matcher;
  matcher.add("<think>", 5);
  matcher.finish();
  EXPECT_EQ(matcher.find_exactly("<think>"), 5);
  EXPECT_FALSE(matcher.find_exactly("<think").has_value());
  EXPECT_FALSE(matcher.find_exactly("<think>x").has_value());
}

TEST(AddedTokens, AgreesWithTryingEveryTokenAtEveryPlace) {
  std::mt19937 random(5);
  const auto random_text = [&random](size_t length) {
    std::string text;
    for (; length > 0; --length)
      text += "ab\xE4"[random() % 3];
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    AddedTokenMatcher matcher;
    std::vector<std::string> contents;
    for (size_t count = random() % 8; count > 0; --count) {
      const std::string content = random_text(1 + random() % 5);
      if (std::find(contents.begin(), contents.end(), content) != contents.end()) continue;
      matcher.add(content, static_cast<int32_t>(contents.size()));
      contents.push_back(content);
    }
    matcher.finish();
    const std::string text = random_text(random() % 12);
    size_t begin = 0;
    size_t bytes = 0;
    for (; begin < text.size() && bytes == 0; begin += bytes == 0 ? 1 : 0) {
      for (const std::string& content : contents) {
        if (text.compare(begin, content.size(), content) == 0) bytes = std::max(bytes, content.size());
      }
    }
    const auto match = matcher.find(text, 0);
    ASSERT_EQ(match.has_value(), bytes > 0) << text;
    if (!match) continue;
    ASSERT_EQ(match->begin, begin) << text;
    ASSERT_EQ(match->bytes, bytes) << text;
    ASSERT_EQ(contents.at(static_cast<size_t>(match->id)), text.substr(begin, bytes));
  }
}

}  // namespace
}  // namespace tidepool
