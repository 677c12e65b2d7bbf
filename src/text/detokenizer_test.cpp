#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/tokenizer_sample.h"
#include "text/unicode.h"

namespace tidepool {
namespace {

const std::string kBroken(kReplacementText);

TEST(Utf8Stream, ACharacterComesWhenItIsComplete) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0"), "a");
  EXPECT_EQ(stream.push("\x9F\x98"), "");
  EXPECT_EQ(stream.push("\x80z"), "😀z");
  EXPECT_EQ(stream.flush(), "");
}

TEST(Utf8Stream, ABrokenCharacterIsReplacedAtOnce) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xE4\xB8"), "");
  EXPECT_EQ(stream.push("<"), kBroken + "<");
  EXPECT_EQ(stream.push("\xE4"), "");
  EXPECT_EQ(stream.push("\xE5"), kBroken);  // the second may still become a character
  EXPECT_EQ(stream.push("\xE4\xFF"), kBroken + kBroken + kBroken);
}

TEST(Utf8Stream, SecondBytesThatCannotFollowBreakAtOnce) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xE0"), "");
  EXPECT_EQ(stream.push("\x80"), kBroken + kBroken);      // an overlong form
  EXPECT_EQ(stream.push("\xF4\x90"), kBroken + kBroken);  // beyond U+10FFFF
}

TEST(Utf8Stream, TheFirstTwoBytesOfASurrogateWaitForOneMore) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xED\xA0"), "");
  EXPECT_EQ(stream.push("\x80"), kBroken + kBroken + kBroken);
  EXPECT_EQ(stream.push("\xED\xBF"), "");
  EXPECT_EQ(stream.flush(), kBroken + kBroken);
  EXPECT_EQ(stream.push("\xED\x9F"), "");  // no surrogate: U+D7C0 to U+D7FF
  EXPECT_EQ(stream.push("\xBF"), "\uD7FF");
}

TEST(Utf8Stream, FlushReplacesWhatIsHeldAndStartsAnew) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xF0\x9F\x98"), "");
  EXPECT_EQ(stream.flush(), kBroken);
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(stream.push("\x80"), kBroken);
}

TEST(Utf8Stream, AnyPartsJoinToTheWholeAndAtMostThreeBytesAreHeld) {
  std::mt19937 random(11);
  const std::string bytes = "a\x80\xBF\xC2\xE0\xA0\xE4\xED\x9F\xF0\x90\xF4\x8F\xFF";
  for (int round = 0; round < 20000; ++round) {
    Utf8Stream stream;
    std::string whole;
    std::string joined;
    for (size_t part_count = random() % 8; part_count > 0; --part_count) {
      std::string part;
      for (size_t length = random() % 4; length > 0; --length)
        part += bytes[random() % bytes.size()];
      whole += part;
      joined += stream.push(part);
      // What is not out yet is the start of one character, so one U+FFFD, or of a surrogate, so two.
      const std::string now = replace_invalid_utf8(whole);
      ASSERT_TRUE(now == joined || now == joined + kBroken || now == joined + kBroken + kBroken);
    }
    joined += stream.flush();
    ASSERT_EQ(joined, replace_invalid_utf8(whole));
  }
}

TEST(Detokenizer, SpecialTokensAreKeptOrLeftOut) {
  const Tokenizer tokenizer = Tokenizer::parse(make_sample_tokenizer(), "sample.json");
  const std::vector<int32_t> ids = tokenizer.encode("hello<think>\xE4\xB8<｜end▁of▁sentence｜>\xAD");
  const auto text_with = [&](SpecialTokens special) {
    Detokenizer detokenizer(tokenizer, special);
    std::string text;
    for (const int32_t id : ids)
      text += detokenizer.push(id);
    return text + detokenizer.flush();
  };
  EXPECT_EQ(text_with(SpecialTokens::kKept), "hello<think>" + kBroken + "<｜end▁of▁sentence｜>" + kBroken);
  EXPECT_EQ(text_with(SpecialTokens::kSkipped), "hello<think>中");
}

}  // namespace
}  // namespace tidepool
