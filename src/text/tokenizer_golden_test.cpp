// The recorded behaviour of the released tokenizer: tests/golden/tokenizer.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_control.h"
#include "text/tokenizer_released.h"
#include "text/unicode.h"

namespace tidepool {
namespace {

using Ids = std::vector<int32_t>;

nlohmann::json read_golden(const std::string& name) {
  std::ifstream file(TIDEPOOL_GOLDEN_DIR "/" + name);
  EXPECT_TRUE(file) << name;
  return nlohmann::json::parse(file).at("cases");
}

class GoldenEncode : public ReleasedTokenizerTest, public testing::WithParamInterface<const char*> {};

TEST_P(GoldenEncode, IdsAreThoseRecorded) {
  const nlohmann::json cases = read_golden("tokenizer/encode_" + std::string(GetParam()) + ".json");
  EXPECT_GE(cases.size(), 10U);
  for (const auto& example : cases) {
    const auto text = example.at("text").get<std::string>();
    const auto ids = example.at("ids").get<Ids>();
    EXPECT_EQ(tokenizer().encode(text), ids) << example.at("id");
    EXPECT_EQ(tokenizer().encode_plain(text), example.value("ids_plain", ids)) << example.at("id");
    EXPECT_EQ(tokenizer().decode(ids), text) << example.at("id");
  }
}

INSTANTIATE_TEST_SUITE_P(Released, GoldenEncode,
                         testing::Values("basic", "boundary", "code", "digits", "fuzz", "long", "multilingual", "punct",
                                         "special", "unicode", "whitespace"),
                         [](const auto& file) { return std::string(file.param); });

class GoldenTokenizer : public ReleasedTokenizerTest {};

TEST_F(GoldenTokenizer, HugeTextsGiveTheRecordedIds) {
  for (const auto& example : read_golden("tokenizer/encode_huge.json")) {
    std::string text;
    for (auto left = example.at("repeat").get<size_t>(); left > 0; --left)
      text += example.at("unit").get<std::string>();
    const Ids ids = tokenizer().encode(text);
    EXPECT_EQ(ids.size(), example.at("ids_count").get<size_t>()) << example.at("unit");
    EXPECT_EQ(sha256_of_ids(ids), example.at("ids_sha256_le_i32").get<std::string>()) << example.at("unit");
  }
}

TEST_F(GoldenTokenizer, IdsDecodeToTheRecordedBytesTextAndStream) {
  for (const auto& example : read_golden("tokenizer/decode.json")) {
    const auto ids = example.at("ids").get<Ids>();
    const std::string bytes = tokenizer().decode(ids);
    std::string hex;
    for (const char byte : bytes) {
      hex += "0123456789abcdef"[static_cast<uint8_t>(byte) >> 4];
      hex += "0123456789abcdef"[static_cast<uint8_t>(byte) & 15];
    }
    EXPECT_EQ(hex, example.at("bytes_hex").get<std::string>()) << example.at("name");
    EXPECT_EQ(replace_invalid_utf8(bytes), example.at("text").get<std::string>()) << example.at("name");

    Detokenizer detokenizer(tokenizer());
    std::vector<std::string> pieces;
    for (const int32_t id : ids)
      pieces.push_back(detokenizer.push(id));
    EXPECT_EQ(pieces, example.at("stream_pieces").get<std::vector<std::string>>()) << example.at("name");
    EXPECT_EQ(detokenizer.flush(), example.at("stream_flush").get<std::string>()) << example.at("name");
  }
}

TEST_F(GoldenTokenizer, PromptsGiveTheRecordedIds) {
  for (const auto& example : read_golden("encoding/prompt_ids.json")) {
    EXPECT_EQ(tokenizer().encode(example.at("prompt").get<std::string>()), example.at("ids").get<Ids>())
        << example.at("id");
  }
}

TEST_F(GoldenTokenizer, AServerFindsItsControlTokensAtTheReleasedIds) {
  const ControlTokens tokens = require_control_tokens(tokenizer(), 129280);
  EXPECT_EQ(tokens.begin_of_sentence, 0);
  EXPECT_EQ(tokens.end_of_sentence, 1);
  EXPECT_EQ(tokens.system, 128799);
  EXPECT_EQ(tokens.think_end, 128822);
  EXPECT_EQ(tokens.dsml, 128825);
  EXPECT_EQ(tokens.image, 129264);
  EXPECT_EQ(tokenizer().vocabulary_size(), 129280U);
}

/// The hosted service counts 5 tokens for `<｜User｜>` and 3 for `<think>` as content: the letters of a user are plain
/// text.
TEST_F(GoldenTokenizer, ControlTokensThatAUserWritesAreLetters) {
  const std::vector<TextRun> runs = {
      {"<｜User｜>", true}, {"<｜User｜>", false}, {"<｜Assistant｜>", true}, {"<think>", false}};
  const Ids ids = tokenizer().encode_runs(runs);
  ASSERT_EQ(ids.size(), 1U + 5U + 1U + 3U);
  EXPECT_EQ(ids[0], 128803);
  EXPECT_EQ(ids[6], 128804);
}

}  // namespace
}  // namespace tidepool
