#include "server/request_fields.h"

#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "server/anthropic_messages.h"
#include "server/chat_completions.h"
#include "server/completions.h"
#include "server/responses.h"

namespace tidepool {
namespace {

constexpr std::string_view kChat = R"("messages":[{"role":"user","content":"a"}])";
constexpr std::string_view kMessages = R"("max_tokens":5,"messages":[{"role":"user","content":"a"}])";

/// What a dialect makes of a body.
template <typename ReadCall>
ServiceRequest read(ReadCall* read_call, std::string_view base, const std::string& fields = "") {
  ApiContext context;
  context.info.decode = [](std::span<const int32_t> /*tokens*/) { return std::string(); };
  const std::string body = R"({"model":"tiny",)" + std::string(base) + fields + "}";
  return std::move(read_call(parse_json(body), context).requests.front());
}

const ChatRequest& chat_of(const ServiceRequest& request) {
  return std::get<ChatRequest>(request.prompt);
}

TEST(RequestFields, ExactCacheIsAskedForByFlag) {
  EXPECT_FALSE(read(chat::read_call, kChat).wants_exact_cache);
  EXPECT_TRUE(read(chat::read_call, kChat, R"(,"exact_cache":true)").wants_exact_cache);
  EXPECT_TRUE(read(completions::read_call, R"("prompt":"a")", R"(,"exact_cache":true)").wants_exact_cache);
}

TEST(RequestFields, ARawPromptBeginsASentenceUnlessToldNotTo) {
  const auto adds_bos = [](const std::string& fields) {
    return std::get<RawPrompt>(read(completions::read_call, R"("prompt":"a")", fields).prompt).adds_bos;
  };
  EXPECT_TRUE(adds_bos(""));
  EXPECT_TRUE(adds_bos(R"(,"add_special_tokens":true)"));
  EXPECT_FALSE(adds_bos(R"(,"add_special_tokens":false)"));
}

TEST(RequestFields, ReasoningOfResponsesHasAnEffortOrIsOff) {
  const auto reasoning = [](const std::string& value) {
    return read(responses::read_call, R"("input":"a")", R"(,"reasoning":)" + value);
  };
  EXPECT_TRUE(chat_of(reasoning("null")).is_thinking);
  EXPECT_FALSE(chat_of(reasoning(R"({"effort":"none"})")).is_thinking);
  for (const std::string effort : {"minimal", "low", "medium", "high", "xhigh"}) {
    const ServiceRequest request = reasoning(R"({"effort":")" + effort + R"(","summary":"auto"})");
    EXPECT_TRUE(chat_of(request).is_thinking) << effort;
    EXPECT_EQ(chat_of(request).effort, try_request_effort(Json::make_string(effort))) << effort;
  }
}

TEST(RequestFields, AMessageOfTheAssistantAtTheEndIsGoneOnWith) {
  EXPECT_FALSE(chat_of(read(messages::read_call, kMessages)).continues_last_message);
  const ServiceRequest request = read(
      messages::read_call,
      R"("max_tokens":5,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"The answer is"}])");
  EXPECT_TRUE(chat_of(request).continues_last_message);
}

TEST(RequestFields, MessagesAcceptWhatHasNoEffect) {
  const ServiceRequest plain = read(messages::read_call, kMessages);
  for (const std::string fields :
       {R"(,"metadata":{},"service_tier":"auto","container":"c","mcp_servers":[])",
        R"(,"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]},"cache_control":{"type":"ephemeral"})",
        R"(,"thinking":{"type":"enabled","budget_tokens":1024},"unknown":{"a":[1]})"}) {
    const ServiceRequest request = read(messages::read_call, kMessages, fields);
    EXPECT_EQ(request.cache_salt, "");
    EXPECT_EQ(request.max_tokens, plain.max_tokens);
    EXPECT_EQ(chat_of(request).messages.size(), 1U);
    EXPECT_TRUE(chat_of(request).is_thinking);
  }
}

}  // namespace
}  // namespace tidepool
