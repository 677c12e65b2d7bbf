#include "text/chat_encoding.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/json_test_support.h"

namespace tidepool {
namespace {

ChatPrompt encode_case(const Json& golden) {
  std::vector<ChatMessage> messages = parse_chat_messages(*golden.find("messages"));
  if (const Json* tools = golden.find("tools")) messages.at(0).tools = tools->as_array();
  ChatEncodingOptions options = parse_chat_encoding_options(*golden.find("options"));
  if (const Json* context = golden.find("context")) options.context = parse_chat_messages(*context);
  return encode_chat(messages, options);
}

/// The runs must cover the text without gaps, and no two plain runs may touch.
void expect_runs_cover(const ChatPrompt& prompt) {
  size_t end = 0;
  bool was_plain = false;
  for (const PromptRun& run : prompt.runs) {
    EXPECT_EQ(run.begin, end);
    EXPECT_GT(run.bytes, 0U);
    EXPECT_FALSE(was_plain && !run.is_control_token);
    was_plain = !run.is_control_token;
    end = run.begin + run.bytes;
  }
  EXPECT_EQ(end, prompt.text.size());
}

class EncodeGolden : public testing::TestWithParam<const char*> {};

TEST_P(EncodeGolden, EveryCaseIsByteExact) {
  const Json cases = load_golden_cases(std::string("encoding/") + GetParam());
  for (const Json& golden : cases.as_array()) {
    SCOPED_TRACE(golden.find("id")->as_string());
    if (golden.find("error") != nullptr) {
      EXPECT_THROW((void)encode_case(golden), Error);
      continue;
    }
    const ChatPrompt prompt = encode_case(golden);
    EXPECT_EQ(prompt.text, golden.find("prompt")->as_string());
    const Json* images = golden.find("images");
    EXPECT_EQ(write_json(Json::make_array(prompt.images)), images == nullptr ? "[]" : write_json(*images));
    expect_runs_cover(prompt);
  }
}

/// Where the turns of a history stand: with reasoning behind the last user turn, without it before.
TEST(PromptTurns, SayWhereReasoningAndAnswerStand) {
  std::vector<ChatMessage> messages(4);
  const auto text = [](std::string content) {
    ContentBlock block;
    block.text = std::move(content);
    return std::vector{block};
  };
  messages[0].content = text("q1");
  messages[2].content = text("q2");
  for (const size_t index : {size_t{1}, size_t{3}}) {
    messages[index].role = ChatRole::kAssistant;
    messages[index].content = text(index == 1 ? "a1" : "a2");
    messages[index].reasoning = index == 1 ? "r1" : "r2";
  }
  ChatEncodingOptions thinking;
  thinking.mode = ThinkingMode::kThinking;
  const ChatPrompt prompt = encode_chat(messages, thinking);
  const auto part = [&](size_t begin, size_t end) { return prompt.text.substr(begin, end - begin); };
  ASSERT_EQ(prompt.turns.size(), 2U);
  const PromptTurn& first = prompt.turns[0];
  EXPECT_FALSE(first.has_reasoning);
  EXPECT_EQ(part(first.begin, first.body), "");
  EXPECT_EQ(part(first.body, first.end), "a1");
  const PromptTurn& second = prompt.turns[1];
  EXPECT_TRUE(second.has_reasoning);
  EXPECT_EQ(part(second.begin, second.body), "r2</think>");
  EXPECT_EQ(part(second.body, second.end), "a2");
}

INSTANTIATE_TEST_SUITE_P(Files, EncodeGolden,
                         testing::Values("encode_agents.json", "encode_arguments.json", "encode_basic.json",
                                         "encode_effort.json", "encode_errors.json", "encode_images.json",
                                         "encode_namespaces.json", "encode_quirks.json", "encode_roles.json",
                                         "encode_tasks.json", "encode_thinking.json", "encode_tools.json"));

}  // namespace
}  // namespace tidepool
