#include "text/tokenizer_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "text/tokenizer_sample.h"

namespace tidepool {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// The sample with all that V4.1 needs; the image token is spelled `image`. Ids of the new ones go on from 272.
json make_complete_sample(const std::string& image) {
  json file = json::parse(make_sample_tokenizer());
  int id = 272;
  for (const std::string text :
       {"<｜System｜>", "<｜latest_reminder｜>", "｜DSML｜", "<｜action｜>", "<｜query｜>", "<｜authority｜>",
        "<｜domain｜>", "<｜title｜>", "<｜read_url｜>", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"}) {
    file["added_tokens"].push_back({{"id", id++}, {"content", text}});
  }
  file["added_tokens"].push_back({{"id", id++}, {"content", image}});
  return file;
}

Tokenizer parse(const json& file) {
  return Tokenizer::parse(file.dump(), "dir/tokenizer.json");
}

TEST(ControlTokens, AreFoundByTheirText) {
  const Tokenizer tokenizer = parse(make_complete_sample("<｜deepseek_image｜>"));
  const ControlTokens tokens = require_control_tokens(tokenizer, 285);
  EXPECT_EQ(tokens.begin_of_sentence, 0);
  EXPECT_EQ(tokens.end_of_sentence, 1);
  EXPECT_EQ(tokens.pad, 2);
  EXPECT_EQ(tokens.user, 267);
  EXPECT_EQ(tokens.assistant, 268);
  EXPECT_EQ(tokens.think_begin, 269);
  EXPECT_EQ(tokens.think_end, 270);
  EXPECT_EQ(tokens.system, 272);
  EXPECT_EQ(tokens.latest_reminder, 273);
  EXPECT_EQ(tokens.dsml, 274);
  EXPECT_EQ(tokens.action, 275);
  EXPECT_EQ(tokens.query, 276);
  EXPECT_EQ(tokens.authority, 277);
  EXPECT_EQ(tokens.domain, 278);
  EXPECT_EQ(tokens.title, 279);
  EXPECT_EQ(tokens.read_url, 280);
  EXPECT_EQ(tokens.fim_begin, 281);
  EXPECT_EQ(tokens.fim_hole, 282);
  EXPECT_EQ(tokens.fim_end, 283);
  EXPECT_EQ(tokens.image, 284);
}

TEST(ControlTokens, TheImageTokenHasASecondSpelling) {
  EXPECT_EQ(find_control_tokens(parse(make_complete_sample("<｜image｜>"))).image, 284);
}

TEST(ControlTokens, MostMayBeMissingForASmallTestCheckpoint) {
  const ControlTokens tokens = find_control_tokens(Tokenizer::load(TIDEPOOL_GOLDEN_DIR "/ckpt/tokenizer.json"));
  EXPECT_EQ(tokens.begin_of_sentence, 0);
  EXPECT_EQ(tokens.end_of_sentence, 1);
  EXPECT_EQ(tokens.image, 505);
  EXPECT_FALSE(tokens.system.has_value());
  EXPECT_FALSE(tokens.dsml.has_value());
}

std::string refusal_of(const json& file, size_t embedding_rows) {
  try {
    (void)require_control_tokens(parse(file), embedding_rows);
  } catch (const Error& error) {
    return std::string(error_code_name(error.code())) + ": " + error.what();
  }
  return "accepted";
}

TEST(ControlTokens, AServerNeedsAllAndHearsWhichAreMissing) {
  EXPECT_THAT(
      refusal_of(json::parse(make_sample_tokenizer()), 1000),
      AllOf(
          HasSubstr(
              "unsupported: dir/tokenizer.json: added tokens are missing: <｜System｜> <｜latest_reminder｜> ｜DSML｜ "
              "<｜deepseek_image｜> "),
          HasSubstr("not the tokenizer of a DeepSeek-V4.1 model"), Not(HasSubstr("<think>"))));
}

TEST(ControlTokens, WithoutASentenceEndItIsAnotherModel) {
  json file = make_complete_sample("<｜image｜>");
  file["added_tokens"].erase(1);
  EXPECT_EQ(refusal_of(file, 1000),
            "unsupported: dir/tokenizer.json: there is no added token \"<｜end▁of▁sentence｜>\"; "
            "this is not the tokenizer of a DeepSeek model");
}

TEST(ControlTokens, EachNeedsAnEmbeddingRow) {
  EXPECT_EQ(refusal_of(make_complete_sample("<｜image｜>"), 285), "accepted");
  EXPECT_EQ(refusal_of(make_complete_sample("<｜image｜>"), 284),
            "corrupt: dir/tokenizer.json: token \"<｜image｜>\" has id 284, but the checkpoint has 284 embedding rows; "
            "tokenizer and weights do not belong together");
}

}  // namespace
}  // namespace tidepool
