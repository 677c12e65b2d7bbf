// What is wrong with a request is said by the path of its field, in every dialect.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "server/anthropic_messages.h"
#include "server/api_error.h"
#include "server/chat_completions.h"
#include "server/completions.h"
#include "server/responses.h"
#include "server/token_routes.h"

namespace tidepool {
namespace {

using ReadCall = ApiCall (*)(const Json& body, const ApiContext& context);

/// A field with a value that is refused, and the path that the refusal names (the field itself when empty).
struct Wrong {
  std::string fields;
  std::string path;
};

/// The path that is named when the base body, with these fields besides, is read; "read" when it is not refused.
std::string refused_path(ReadCall read_call, const std::string& base, const std::string& fields) {
  ApiContext context;
  context.info.decode = [](std::span<const int32_t>) { return std::string("x"); };
  try {
    const Json body = parse_request_json("{" + base + (fields.empty() ? "" : ",") + fields + "}");
    const ApiCall call = read_call(body, context);
    for (const ServiceRequest& request : call.requests) {
      if (const auto* chat = std::get_if<ChatRequest>(&request.prompt)) check_chat_request(*chat);
    }
    return "read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    const ApiError refused = refused_error(error);
    EXPECT_EQ(refused.status, 400);
    return refused.param;
  }
}

void expect_refusals(ReadCall read_call, const std::string& base, const std::vector<Wrong>& cases) {
  EXPECT_EQ(refused_path(read_call, base, ""), "read");
  for (const Wrong& wrong : cases)
    EXPECT_EQ(refused_path(read_call, base, wrong.fields), wrong.path) << wrong.fields;
}

const std::vector<Wrong>& sampling_cases() {
  static const std::vector<Wrong> cases = {
      {R"("temperature":"hot")", "temperature"},
      {R"("temperature":2.1)", "temperature"},
      {R"("temperature":-0.1)", "temperature"},
      {R"("top_p":0)", "top_p"},
      {R"("top_p":1.01)", "top_p"},
      {R"("top_k":1.5)", "top_k"},
      {R"("top_k":-2)", "top_k"},
      {R"("stream":1)", "stream"},
  };
  return cases;
}

const std::vector<Wrong>& openai_cases() {
  static const std::vector<Wrong> cases = {
      {R"("min_p":1.5)", "min_p"},
      {R"("presence_penalty":3)", "presence_penalty"},
      {R"("frequency_penalty":-3)", "frequency_penalty"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("logit_bias":[])", "logit_bias"},
      {R"("logit_bias":{"a":1})", "logit_bias"},
      {R"("logit_bias":{"1":101})", "logit_bias"},
      {R"("logit_bias":{"1":"x"})", "logit_bias"},
      {R"("seed":-1)", "seed"},
      {R"("seed":9223372036854775808)", "seed"},
      {R"("stop":5)", "stop"},
      {R"("stop":"")", "stop"},
      {R"("stop":["a",""])", "stop[1]"},
      {R"("stop":["a",1])", "stop[1]"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])", "stop"},
      {R"("stop_token_ids":[-1])", "stop_token_ids[0]"},
      {R"("ignore_eos":"no")", "ignore_eos"},
      {R"("min_tokens":-1)", "min_tokens"},
      {R"("n":0)", "n"},
      {R"("n":9)", "n"},
      {R"("n":2,"best_of":3)", "best_of"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":-5)", "max_tokens"},
      {R"("max_tokens":"all")", "max_tokens"},
      {R"("priority":"high")", "priority"},
      {R"("cache_salt":1)", "cache_salt"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
  };
  return cases;
}

TEST(RequestErrors, ChatCompletions) {
  const std::string base = R"("messages":[{"role":"user","content":"a"}])";
  expect_refusals(chat::read_call, base, sampling_cases());
  expect_refusals(chat::read_call, base, openai_cases());
  expect_refusals(chat::read_call, base,
                  {{R"("messages":[])", "messages"},
                   {R"("messages":"a")", "messages"},
                   {R"("messages":[{"role":"bot","content":"a"}])", "messages[0].role"},
                   {R"("messages":[{"role":"user","content":5}])", "messages[0].content"},
                   {R"("messages":[{"role":"assistant"}])", "messages[0].content"},
                   {R"("messages":[{"role":"tool","content":"a"}])", "messages[0].tool_call_id"},
                   {R"("max_completion_tokens":0)", "max_completion_tokens"},
                   {R"("logprobs":1)", "logprobs"},
                   {R"("top_logprobs":3)", "top_logprobs"},
                   {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
                   {R"("tools":{})", "tools"},
                   {R"("tools":[{"type":"function","function":{"name":"a b"}}])", "tools[0].function.name"},
                   {R"("tool_choice":"required")", "tool_choice"},
                   {R"("tool_choice":"perhaps")", "tool_choice"},
                   {R"("parallel_tool_calls":"no")", "parallel_tool_calls"},
                   {R"("response_format":{"type":"xml"})", "response_format.type"},
                   {R"("thinking":{"type":"maybe"})", "thinking.type"},
                   {R"("reasoning_effort":"huge")", "reasoning_effort"},
                   {R"("reasoning_effort":101)", "reasoning_effort"},
                   {R"("audio":{})", "audio"},
                   {R"("modalities":["text","audio"])", "modalities"},
                   {R"("metadata":"m")", "metadata"},
                   {R"("user":5)", "user"}});
}

TEST(RequestErrors, ChatAcceptsWhatHasNoEffectAndNull) {
  const std::string base = R"("messages":[{"role":"user","content":"a"}])";
  for (const std::string fields :
       {R"("unknown":{"a":1},"store":true,"metadata":{"k":"v"},"service_tier":"auto","prediction":{"type":"content"})",
        R"("temperature":null,"stop":null,"tools":null,"stream":null,"max_tokens":null,"logit_bias":null,"n":null)",
        R"("max_tokens":16.0,"verbosity":"low","modalities":["text"],"user_id":"u")"}) {
    EXPECT_EQ(refused_path(chat::read_call, base, fields), "read") << fields;
  }
}

TEST(RequestErrors, Completions) {
  const std::string base = R"("prompt":"a")";
  expect_refusals(completions::read_call, base, sampling_cases());
  expect_refusals(completions::read_call, base, openai_cases());
  expect_refusals(completions::read_call, base,
                  {{R"("prompt":5)", "prompt"},
                   {R"("prompt":[])", "prompt"},
                   {R"("prompt":null)", "prompt"},
                   {R"("prompt":[1,"a"])", "prompt"},
                   {R"("prompt":["a",5])", "prompt[1]"},
                   {R"("prompt":[[1],[]])", "prompt[1]"},
                   {R"("prompt":[[1],[-1]])", "prompt[1]"},
                   {R"("logprobs":true)", "logprobs"},
                   {R"("logprobs":21)", "logprobs"},
                   {R"("suffix":5)", "suffix"},
                   {R"("prompt":["a","b"],"suffix":"c")", "suffix"},
                   {R"("suffix":"c","echo":true)", "echo"},
                   {R"("logprobs":1,"echo":true)", "echo"}});
}

TEST(RequestErrors, Messages) {
  const std::string base = R"("max_tokens":5,"messages":[{"role":"user","content":"a"}])";
  const std::string call = R"({"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]})";
  expect_refusals(messages::read_call, base, sampling_cases());
  expect_refusals(messages::read_call, base,
                  {{R"("max_tokens":null)", "max_tokens"},
                   {R"("max_tokens":0)", "max_tokens"},
                   {R"("messages":[])", "messages"},
                   {R"("messages":[{"role":"tool","content":"a"}])", "messages[0].role"},
                   {R"("messages":[{"role":"user"}])", "messages[0].content"},
                   {R"("messages":[{"role":"user","content":[{"type":"document"}]}])", "messages[0].content[0]"},
                   {R"("messages":[{"role":"user","content":[{"type":"image"}]}])", "messages[0].content[0].source"},
                   {R"("messages":[)" + call + R"(,{"role":"user","content":"a"}])", "messages[1].content"},
                   {R"("messages":[)" + call + R"(,)" + call + "]", "messages[1].content"},
                   {R"("messages":[)" + call + "]", "messages"},
                   {R"("messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"9"}]}])",
                    "messages[0].content[0].tool_use_id"},
                   {R"("system":5)", "system"},
                   {R"("stop_sequences":[""])", "stop_sequences[0]"},
                   {R"("tools":[{"description":"d"}])", "tools[0].name"},
                   {R"("tool_choice":{"type":"some"})", "tool_choice.type"},
                   {R"("tool_choice":{"type":"any"})", "tool_choice"},
                   {R"("thinking":{"type":"off"})", "thinking.type"},
                   {R"("output_config":{"effort":"huge"})", "output_config.effort"},
                   {R"("output_config":{"format":{"type":"json_schema"}})", "output_config.format.schema"}});
}

TEST(RequestErrors, Responses) {
  const std::string base = R"("input":"a")";
  expect_refusals(responses::read_call, base, sampling_cases());
  expect_refusals(
      responses::read_call, base,
      {{R"("input":null)", "input"},
       {R"("input":[])", "input"},
       {R"("input":[5])", "input[0]"},
       {R"("input":[{"role":"bot","content":"a"}])", "input[0].role"},
       {R"("input":[{"role":"user","content":[{"type":"input_file"}]}])", "input[0].content[0].type"},
       {R"("input":[{"type":"item_reference","id":"x"}])", "input[0].type"},
       {R"("input":[{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}])", "input[0].call_id"},
       {R"("input":[{"type":"function_call_output","call_id":"1","output":"o"}])", "input[0].call_id"},
       {R"("previous_response_id":"x")", "previous_response_id"},
       {R"("conversation":"x")", "conversation"},
       {R"("background":true)", "background"},
       {R"("max_output_tokens":0)", "max_output_tokens"},
       {R"("reasoning":{"effort":"huge"})", "reasoning.effort"},
       {R"("text":{"format":{"type":"xml"}})", "text.format.type"},
       {R"("text":{"format":{"type":"json_schema"}})", "text.format.schema"},
       {R"("tool_choice":"perhaps")", "tool_choice"},
       {R"("tools":[{"type":"function"}])", "tools[0].name"},
       {R"("top_logprobs":21)", "top_logprobs"}});
}

TEST(RequestErrors, ForcedCallsTurnThinkingOffUnlessItIsAskedFor) {
  const std::string tool = R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"any"})";
  const std::string base = R"("max_tokens":5,"messages":[{"role":"user","content":"a"}])";
  EXPECT_EQ(refused_path(messages::read_call, base, tool), "read");
  EXPECT_EQ(refused_path(messages::read_call, base, tool + R"(,"thinking":{"type":"enabled"})"), "tool_choice");
  const std::string function = R"("tools":[{"type":"function","name":"f"}],"tool_choice":"required")";
  EXPECT_EQ(refused_path(responses::read_call, R"("input":"a")", function), "read");
  EXPECT_EQ(refused_path(responses::read_call, R"("input":"a")", function + R"(,"reasoning":{"effort":"low"})"),
            "tool_choice");
}

TEST(RequestErrors, BodiesThatAreNoJsonOrTooDeep) {
  for (const std::string body : {"", "{", "{\"a\":}", "[1,2", "{\"a\":1}x", "\xff\xfe", "nul"})
    EXPECT_THROW((void)parse_request_json(body), Error) << body;
  try {
    (void)parse_request_json(std::string(10'000, '['));
    ADD_FAILURE() << "too deep";
  } catch (const Error& error) {
    EXPECT_EQ(refused_error(error).status, 400);
    EXPECT_EQ(refused_error(error).code, "");
  }
}

TEST(RequestErrors, EachDialectHasItsShape) {
  ApiError error;
  error.status = 400;
  error.message = "n: \"no\"";
  error.param = "n";
  EXPECT_EQ(error_body(error, ErrorDialect::kOpenAi, "r"),
            R"({"error":{"message":"n: \"no\"","type":"invalid_request_error","param":"n","code":null}})");
  EXPECT_EQ(error_body(error, ErrorDialect::kAnthropic, "r"),
            R"({"type":"error","error":{"type":"invalid_request_error","message":"n: \"no\""},"request_id":"r"})");
  const std::vector<std::tuple<int, std::string, std::string, int>> types = {
      {401, "authentication_error", "authentication_error", 401},
      {403, "permission_error", "permission_error", 403},
      {404, "invalid_request_error", "not_found_error", 404},
      {413, "invalid_request_error", "request_too_large", 413},
      {429, "rate_limit_error", "rate_limit_error", 429},
      {500, "server_error", "api_error", 500},
      {503, "server_error", "overloaded_error", 529},
      {504, "server_error", "timeout_error", 504}};
  for (const auto& [status, openai, anthropic, anthropic_status] : types) {
    error.status = status;
    EXPECT_NE(error_body(error, ErrorDialect::kOpenAi, "").find("\"" + openai + "\""), std::string::npos) << status;
    EXPECT_NE(error_body(error, ErrorDialect::kAnthropic, "").find("\"" + anthropic + "\""), std::string::npos);
    EXPECT_EQ(error_answer(error, ErrorDialect::kAnthropic, "").status, anthropic_status);
  }
}

}  // namespace
}  // namespace tidepool
