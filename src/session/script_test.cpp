#include "session/script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/temp_folder.h"

namespace tidepool {
namespace {

constexpr int32_t kScriptEnd = 1;

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "ckpt/tokenizer.json");
  return loaded;
}

std::unique_ptr<Script> parse(std::string_view text) {
  return Script::parse(text, "outputs.jsonl", tokenizer(), kScriptEnd);
}

std::string text_of(std::vector<int32_t> ids) {
  if (!ids.empty() && ids.back() == kScriptEnd) ids.pop_back();
  return tokenizer().decode(ids);
}

TEST(Script, LinesWithoutMatchAnswerInTurn) {
  const auto script = parse("{\"text\": \"one\"}\n\n# a remark\r\n{\"text\": \"two\"}\r\n");
  EXPECT_EQ(text_of(script->next("x")), "one");
  EXPECT_EQ(text_of(script->next("x")), "two");
  EXPECT_EQ(text_of(script->next("x")), "one");
}

TEST(Script, FirstMatchWinsAndIsNotUsedUp) {
  const auto script = parse(R"({"text": "any"}
{"text": "rain", "match": "weather"}
{"text": "never", "match": "the weather"})");
  EXPECT_EQ(text_of(script->next("how is the weather?")), "rain");
  EXPECT_EQ(text_of(script->next("how is the weather?")), "rain");
  EXPECT_EQ(text_of(script->next("else")), "any");
}

TEST(Script, EndOfTheTurnFollowsUnlessItRepeats) {
  const auto script = parse(R"({"ids": [5, 6]}
{"ids": [7], "repeat": true})");
  EXPECT_EQ(script->next(""), (std::vector{5, 6, kScriptEnd}));
  EXPECT_EQ(script->next(""), (std::vector{7}));
}

TEST(Script, ControlTokensInTextAreMeant) {
  const std::vector<int32_t> ids = parse(R"({"text": "a</think>b"})")->next("");
  EXPECT_THAT(ids, testing::Contains(504));  // </think> in the golden tokenizer
}

TEST(Script, PromptThatNoLineFitsIsAnError) {
  const auto script = parse(R"({"text": "x", "match": "y"})");
  try {
    (void)script->next("z");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.what(), testing::HasSubstr("outputs.jsonl"));
  }
}

TEST(Script, BadLinesAreNamed) {
  const auto refusal = [](std::string_view line) -> std::string {
    try {
      (void)parse("{\"text\": \"fine\"}\n" + std::string(line));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "taken";
  };
  using testing::AllOf;
  using testing::HasSubstr;
  const auto names = [](std::string_view what) {
    return AllOf(HasSubstr("outputs.jsonl, line 2: "), HasSubstr(std::string(what)));
  };
  EXPECT_THAT(refusal("{"), names(""));
  EXPECT_THAT(refusal("[]"), names("object"));
  EXPECT_THAT(refusal("{}"), names("either text or ids"));
  EXPECT_THAT(refusal(R"({"text": "a", "ids": []})"), names("either text or ids"));
  EXPECT_THAT(refusal(R"({"text": 1})"), names("text is"));
  EXPECT_THAT(refusal(R"({"ids": "1"})"), names("ids is"));
  EXPECT_THAT(refusal(R"({"ids": [1.5]})"), names("1.5"));
  EXPECT_THAT(refusal(R"({"ids": [-1]})"), names("-1"));
  EXPECT_THAT(refusal(R"({"ids": [99999999999]})"), names("99999999999"));
  EXPECT_THAT(refusal(R"({"text": "a", "match": ""})"), names("match"));
  EXPECT_THAT(refusal(R"({"text": "a", "match": 3})"), names("match"));
  EXPECT_THAT(refusal(R"({"text": "a", "repeat": 1})"), names("repeat"));
  EXPECT_THAT(refusal(R"({"text": "", "repeat": true})"), names("nothing to repeat"));
  EXPECT_THAT(refusal(R"({"text": "a", "mach": "b"})"), names("mach"));
}

TEST(Script, FileWithoutOutputsIsRefused) {
  EXPECT_THROW((void)parse("# nothing\n"), Error);
  EXPECT_THROW((void)parse(""), Error);
}

TEST(Script, MissingFileIsSaid) {
  const TempFolder folder;
  EXPECT_THROW((void)Script::load(folder / "none.jsonl", tokenizer(), kScriptEnd), Error);
}

}  // namespace
}  // namespace tidepool
