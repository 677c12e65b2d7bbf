#include "text/chat_request.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/json_test_support.h"

namespace tidepool {
namespace {

PreparedChat prepare(std::string_view body) {
  return encode_chat_request(parse_chat_request(parse_json(body)));
}

std::string request_refusal(std::string_view body) {
  try {
    (void)prepare(body);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST(ChatRequest, EveryGoldenRequestIsByteExactOrRefused) {
  const Json cases = load_golden_cases("encoding/requests.json");
  for (const Json& golden : cases.as_array()) {
    SCOPED_TRACE(golden.find("id")->as_string());
    const std::string body = write_json(*golden.find("request"));
    if (golden.find("error") != nullptr) {
      EXPECT_NE(request_refusal(body), "accepted");
      continue;
    }
    const PreparedChat prepared = prepare(body);
    EXPECT_EQ(prepared.prompt.text, golden.find("prompt")->as_string());
    EXPECT_EQ(output_start_name(prepared.output_starts_in), golden.find("output_starts_in")->as_string());
    const Json* images = golden.find("images");
    EXPECT_EQ(prepared.prompt.images.size(), images == nullptr ? 0U : static_cast<size_t>(*images->try_int64()));
  }
}

constexpr std::string_view kCallPrefix =
    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [)"
    R"({"id": "1", "function": {"name": "f", "arguments": "{}"}}, {"id": "2", "function": {"name": "g"}}, )"
    R"({"id": "3", "function": {"name": "h", "arguments": null}}]})";

std::string after_calls(std::string_view messages) {
  return std::string(kCallPrefix).append(messages) + "]}";
}

std::string result(std::string_view id) {
  return R"(, {"role": "tool", "content": "R)" + std::string(id) + R"(", "tool_call_id": ")" + std::string(id) + "\"}";
}

TEST(ChatRequest, ResultsInAnyOrderGiveOnePrompt) {
  const std::string expected = prepare(after_calls(result("1") + result("2") + result("3"))).prompt.text;
  for (const auto& order : {"132", "213", "231", "312", "321"}) {
    std::string results;
    for (const char id : std::string_view(order))
      results += result(std::string(1, id));
    EXPECT_EQ(prepare(after_calls(results)).prompt.text, expected);
  }
}

TEST(ChatRequest, CallsAndResultsMustPair) {
  EXPECT_EQ(request_refusal(after_calls(result("1") + result("3"))),
            "messages[1].tool_calls: call \"2\" is not answered by a tool message right behind it");
  EXPECT_EQ(request_refusal(after_calls(result("1") + result("1") + result("2") + result("3"))),
            "messages[3].tool_call_id: \"1\" is no unanswered call of the assistant message before");
  EXPECT_EQ(
      request_refusal(after_calls(R"(, {"role": "user", "content": "x"})" + result("1") + result("2") + result("3"))),
      "messages[1].tool_calls: call \"1\" is not answered by a tool message right behind it");
  EXPECT_EQ(request_refusal(R"({"messages": [{"role": "tool", "content": "x", "tool_call_id": "9"}]})"),
            "messages[0].tool_call_id: \"9\" is no unanswered call of the assistant message before");
  EXPECT_EQ(
      request_refusal(R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}, )"
                      R"({"id": "a", "function": {"name": "f"}}]}]})"),
      "messages[0].tool_calls[1].id: \"a\" is used by another call of this message");
  EXPECT_EQ(request_refusal(R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]})"),
            "messages[0].tool_calls[0].id: is missing; the result is matched to the call by it");
}

TEST(ChatRequest, NoToolChoiceEqualsNoTools) {
  const std::string messages = R"({"messages": [{"role": "user", "content": "q"}])";
  const PreparedChat none =
      prepare(messages + R"(, "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"})");
  EXPECT_EQ(none.prompt.text, prepare(messages + "}").prompt.text);
  EXPECT_FALSE(none.has_tools);
}

TEST(ChatRequest, RefusalsNameTheField) {
  const auto with = [](std::string_view fields) {
    return request_refusal(R"({"messages": [{"role": "user", "content": "q"}], )" + std::string(fields) + "}");
  };
  EXPECT_EQ(request_refusal("[]"), "request: must be a JSON object, not an array");
  EXPECT_EQ(request_refusal("{}"), "messages: is missing");
  EXPECT_EQ(request_refusal(R"({"messages": 1})"), "messages: must be a list, not an integer");
  EXPECT_EQ(request_refusal(R"({"messages": [1]})"), "messages[0]: must be an object, not an integer");
  EXPECT_EQ(request_refusal(R"({"messages": [{"role": "user", "content": 5}]})"),
            "messages[0].content: must be a string or a list of blocks, not an integer");
  EXPECT_EQ(request_refusal(R"({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]})"),
            "messages[0].content: a part of type \"input_audio\" is not supported; send text or image_url parts");
  EXPECT_EQ(
      request_refusal(R"({"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": "x"}]}]})"),
      "messages[0].content: images are possible in user and tool messages only");
  EXPECT_EQ(request_refusal(R"({"messages": [{"role": "assistant", "content": null}]})"),
            "messages[0].content: an assistant message needs content or tool_calls");
  EXPECT_EQ(
      request_refusal(R"({"messages": [{"role": "assistant", "content": "a", "prefix": true}, {"role": "user"}]})"),
      "messages[0].prefix: is possible in the last message only");
  EXPECT_EQ(with(R"("continue_final_message": true)"), "messages[0]: only an assistant message can be continued");
  EXPECT_EQ(with(R"("tools": [{"function": {"name": "a b"}}])"),
            "tools[0].function.name: \"a b\" is not 1 to 128 of the characters A-Z a-z 0-9 _ . : -");
  EXPECT_EQ(with(R"("tools": [{"function": {"name": "f"}}, {"function": {"name": "f"}}])"),
            "tools[1].function.name: \"f\" is defined twice");
  EXPECT_EQ(with(R"("tools": [{"type": "web_search"}])"),
            "tools[0].type: \"web_search\" is not supported; only \"function\" is");
  EXPECT_EQ(with(R"("tool_choice": "required", "thinking": {"type": "disabled"})"),
            "tool_choice: asks for a call, but there are no tools");
  EXPECT_EQ(with(R"("response_format": {"type": "xml"})"),
            "response_format.type: \"xml\" is none of text, json_object, json_schema");
  EXPECT_EQ(with(R"("thinking": {"type": "maybe"})"),
            "thinking.type: \"maybe\" is none of enabled, adaptive, disabled");
  EXPECT_EQ(with(R"("chat_template_kwargs": {"thinking": 1})"),
            "chat_template_kwargs.thinking: must be a boolean, not an integer");
}

TEST(ChatRequest, PlaceholderRefusalsNameTheClientsMessageNotTheInsertedOne) {
  EXPECT_TRUE(request_refusal(R"({"messages": [{"role": "user", "content": "<｜deepseek_image｜>"}], )"
                              R"("tools": [{"function": {"name": "f"}}]})")
                  .starts_with("messages[0].content: "));
}

TEST(ChatRequest, EveryEffortOfTheTable) {
  const auto effort = [](std::string_view value) {
    return request_refusal(R"({"messages": [{"role": "user", "content": "q"}], "reasoning_effort": )" +
                           std::string(value) + "}");
  };
  for (const std::string_view accepted : {"1", "50", "100", "null", "\"low\"", "\"ultra\"", "\"none\""}) {
    EXPECT_EQ(effort(accepted), "accepted") << accepted;
  }
  for (const std::string_view refused : {"0", "101", "50.5", "50.0", "\"50\"", "true", "[]", "\"\""}) {
    EXPECT_TRUE(effort(refused).starts_with("reasoning_effort: ")) << refused;
  }
}

TEST(ChatRequest, ContinuationsEndInTheTextAndKeepTheirNewlines) {
  const PreparedChat prepared = prepare(
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer is"}],
          "continue_final_message": true, "add_generation_prompt": false})");
  EXPECT_TRUE(prepared.prompt.text.ends_with("</think>The answer is"));
  EXPECT_EQ(prepared.output_starts_in, OutputStart::kContinuation);
}

TEST(ChatRequest, NamespacedToolsAreShownQualified) {
  const PreparedChat prepared = prepare(
      R"({"messages": [{"role": "user", "content": "q"}], "thinking": {"type": "disabled"},
          "tools": [{"namespace": {"name": "s", "description": "N."}, "function": {"name": "f", "description": "d"}}],
          "tool_choice": {"type": "function", "function": {"name": "s::f"}}})");
  EXPECT_NE(prepared.prompt.text.find(R"({"name": "s::f", "description": "N.\nd", "parameters": {}})"),
            std::string::npos);
  EXPECT_EQ(prepared.output_starts_in, OutputStart::kCalls);
}

// A trailing reminder and a lone system message open no turn in the encoder; a request is for one.
TEST(ChatRequest, AnAssistantTurnIsAlwaysOpened) {
  EXPECT_TRUE(prepare(R"({"messages": [{"role": "system", "content": "s"}]})")
                  .prompt.text.ends_with("s<｜Assistant｜><think>"));
  EXPECT_TRUE(
      prepare(R"({"messages": [{"role": "user", "content": "q"}, {"role": "latest_reminder", "content": "d"}]})")
          .prompt.text.ends_with("<｜latest_reminder｜>d<｜Assistant｜><think>"));
}

}  // namespace
}  // namespace tidepool
