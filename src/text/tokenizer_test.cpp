#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/tokenizer_sample.h"

namespace tidepool {
namespace {

using Ids = std::vector<int32_t>;

// Ids of the sample: bytes from 3, then what the merges made, then added tokens.
constexpr int32_t byte_id(char byte) {
  return 3 + static_cast<uint8_t>(byte);
}
constexpr int32_t kHello = 262;
constexpr int32_t kSpaceHello = 263;
constexpr int32_t kUser = 267;
constexpr int32_t kThink = 269;
constexpr int32_t kThinking = 271;

Tokenizer make_sample() {
  return Tokenizer::parse(make_sample_tokenizer(), "sample.json");
}

TEST(Tokenizer, TextBecomesMergedBytesPieceByPiece) {
  const Tokenizer tokenizer = make_sample();
  EXPECT_EQ(tokenizer.encode("hello hello"), Ids({kHello, kSpaceHello}));
  EXPECT_EQ(tokenizer.encode("hello1"), Ids({kHello, byte_id('1')}));
  EXPECT_EQ(tokenizer.encode("1112"), Ids({byte_id('1'), byte_id('1'), byte_id('1'), byte_id('2')}));  // 111 and 2
  EXPECT_EQ(tokenizer.encode(""), Ids());
}

TEST(Tokenizer, AddedTokensAreFoundInsideWords) {
  const Tokenizer tokenizer = make_sample();
  EXPECT_EQ(tokenizer.encode("hello<think>hello"), Ids({kHello, kThink, kHello}));
  EXPECT_EQ(tokenizer.encode("<think>ing<think>in"), Ids({kThinking, kThink, byte_id('i'), byte_id('n')}));
  EXPECT_EQ(tokenizer.encode("<｜User｜>"), Ids({kUser}));
}

TEST(Tokenizer, PlainTextHasNoAddedTokens) {
  const Tokenizer tokenizer = make_sample();
  const Ids ids = tokenizer.encode_plain("<think>");
  EXPECT_EQ(ids.size(), 7U);
  EXPECT_EQ(tokenizer.decode(ids), "<think>");
  // Neither is one found that the vocabulary has as well.
  EXPECT_THAT(tokenizer.encode_plain("<｜begin▁of▁sentence｜>"), testing::Each(testing::Ge(3)));
}

TEST(Tokenizer, RunsAreControlTokensOnlyWhereTheySaySo) {
  const Tokenizer tokenizer = make_sample();
  const std::vector<TextRun> runs = {{"<｜User｜>", true}, {"<think>", false}, {"<think>", true}, {"hello", false}};
  Ids expected = {kUser};
  for (const char byte : std::string("<think>"))
    expected.push_back(byte_id(byte));
  expected.insert(expected.end(), {kThink, kHello});
  EXPECT_EQ(tokenizer.encode_runs(runs), expected);
  EXPECT_EQ(tokenizer.encode_runs({}), Ids());
}

TEST(Tokenizer, NeighbouringPlainRunsAreOneText) {
  const Tokenizer tokenizer = make_sample();
  const std::vector<TextRun> runs = {{"he"}, {"l"}, {"lo"}, {"<think>", true}, {" hel"}, {""}, {"lo"}};
  EXPECT_EQ(tokenizer.encode_runs(runs), Ids({kHello, kThink, kSpaceHello}));
}

TEST(Tokenizer, AControlTokenMustExist) {
  const Tokenizer tokenizer = make_sample();
  const std::vector<TextRun> runs = {{"<｜System｜>", true}};
  try {
    (void)tokenizer.encode_runs(runs);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("sample.json: there is no added token \"<｜System｜>\""));
  }
}

TEST(Tokenizer, TokensAreDescribed) {
  const Tokenizer tokenizer = make_sample();
  EXPECT_EQ(tokenizer.vocabulary_size(), 272U);
  EXPECT_EQ(tokenizer.token_bytes(kSpaceHello), " hello");
  EXPECT_EQ(tokenizer.token_letters(kSpaceHello), "Ġhello");
  EXPECT_EQ(tokenizer.token_bytes(kUser), "<｜User｜>");
  EXPECT_EQ(tokenizer.token_letters(kUser), "<｜User｜>");
  EXPECT_TRUE(tokenizer.is_special(0));
  EXPECT_FALSE(tokenizer.is_special(kThink));
  EXPECT_TRUE(tokenizer.is_added(kThink));
  EXPECT_FALSE(tokenizer.is_added(kHello));
  EXPECT_EQ(tokenizer.find_token(" hello"), kSpaceHello);
  EXPECT_EQ(tokenizer.find_token("<think>"), kThink);
  EXPECT_EQ(tokenizer.find_token("Ġhello"), std::nullopt);
  EXPECT_EQ(tokenizer.find_added_token("hello"), std::nullopt);
}

TEST(Tokenizer, IdsWithoutATokenStandForNothing) {
  const Tokenizer tokenizer = make_sample();
  for (const int32_t id : {-1, 272, 1 << 30}) {
    EXPECT_EQ(tokenizer.token_bytes(id), "");
    EXPECT_EQ(tokenizer.token_letters(id), "");
    EXPECT_FALSE(tokenizer.is_special(id));
    EXPECT_FALSE(tokenizer.is_added(id));
  }
  EXPECT_EQ(tokenizer.decode(Ids({kHello, -1, 272, kSpaceHello})), "hello hello");
}

TEST(Tokenizer, AnyBytesComeBackFromTheirIds) {
  const Tokenizer tokenizer = make_sample();
  std::mt19937 random(3);
  const std::vector<std::string> parts = {"hello",    " ",    "<think>", "<｜User", "｜>", "\xFF",
                                          "\xE4\xB8", "\xAD", "\0",      "中",      "\n",  "12"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t count = random() % 12; count > 0; --count) {
      text += random() % 2 == 0 ? parts[random() % parts.size()] : std::string(1, static_cast<char>(random()));
    }
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    ASSERT_EQ(tokenizer.decode(tokenizer.encode_plain(text)), text);
  }
}

TEST(Tokenizer, ATokenizerCanBeMoved) {
  Tokenizer first = make_sample();
  const Tokenizer second = std::move(first);
  EXPECT_EQ(second.encode("hello"), Ids({kHello}));
  EXPECT_EQ(second.name(), "sample.json");
}

TEST(Tokenizer, AMissingFileIsNamed) {
  try {
    (void)Tokenizer::load("/nonexistent/tokenizer.json");
    FAIL() << "was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.what(), testing::HasSubstr("/nonexistent/tokenizer.json"));
  }
}

TEST(Tokenizer, TheSmallTestCheckpointLoads) {
  const Tokenizer tokenizer = Tokenizer::load(TIDEPOOL_GOLDEN_DIR "/ckpt/tokenizer.json");
  EXPECT_EQ(tokenizer.vocabulary_size(), 512U);
  EXPECT_EQ(tokenizer.find_added_token("<｜deepseek_image｜>"), 505);
  const std::string text = "The <think>тест 中文 123</think>\n";
  const Ids ids = tokenizer.encode(text);
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_THAT(ids, testing::Contains(503));
  EXPECT_LT(ids.size(), text.size());
}

}  // namespace
}  // namespace tidepool
