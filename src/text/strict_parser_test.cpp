#include "text/strict_parser.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/json_test_support.h"

namespace tidepool {
namespace {

ThinkingMode mode_of(const Json& golden) {
  return golden.find("thinking_mode")->as_string() == "thinking" ? ThinkingMode::kThinking : ThinkingMode::kChat;
}

/// The message in the layout of the golden file.
std::string message_text(const ParsedMessage& message) {
  Json calls = Json::make_array();
  for (const ParsedCall& call : message.tool_calls) {
    Json function = Json::make_object();
    function.set("name", Json::make_string(call.name));
    function.set("arguments", Json::make_string(call.arguments));
    Json shown = Json::make_object();
    shown.set("type", Json::make_string("function"));
    shown.set("function", function);
    if (!call.space.empty()) shown.set("namespace", Json::make_string(call.space));
    calls.as_array().push_back(shown);
  }
  Json result = Json::make_object();
  result.set("role", Json::make_string("assistant"));
  result.set("content", Json::make_string(message.content));
  result.set("reasoning_content", Json::make_string(message.reasoning));
  result.set("tool_calls", calls);
  return write_json(result);
}

TEST(StrictParser, EveryGoldenCompletionReadsAsStatedOrIsRefused) {
  const Json strict = load_golden_cases("encoding/parse_strict.json");
  for (const Json& golden : strict.as_array()) {
    SCOPED_TRACE(golden.find("id")->as_string());
    const std::string& completion = golden.find("completion")->as_string();
    if (golden.find("error") != nullptr) {
      EXPECT_THROW((void)parse_completion_strictly(completion, mode_of(golden)), Error);
    } else {
      EXPECT_EQ(message_text(parse_completion_strictly(completion, mode_of(golden))),
                write_json(*golden.find("message")));
    }
  }
}

// A completion cut anywhere is never taken for a finished one, except where only the closing token of a calls block is
// missing, which the reference forgives.
TEST(StrictParser, CutCompletionsAreRefused) {
  const std::string text =
      "why</think>Look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" "
      "string=\"true\">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  for (size_t bytes = 0; bytes < text.size(); ++bytes) {
    EXPECT_THROW((void)parse_completion_strictly(text.substr(0, bytes), ThinkingMode::kThinking), Error) << bytes;
  }
  EXPECT_EQ(parse_completion_strictly(text, ThinkingMode::kThinking).tool_calls.size(), 1U);
}

TEST(StrictParser, RefusalsNameTheByte) {
  try {
    (void)parse_completion_strictly("abc", ThinkingMode::kChat);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "completion, byte 3: the text ends without the end-of-sentence token");
  }
}

}  // namespace
}  // namespace tidepool
