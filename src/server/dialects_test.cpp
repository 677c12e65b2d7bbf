// Every dialect on the real engine with recorded outputs, over sockets: what streams add up to, and what they count.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/dialect_test_support.h"
#include "session/image_source.h"

namespace tidepool {
namespace {

using server_testing::at;
using server_testing::DialectsTest;
using server_testing::Event;
using server_testing::kChatTools;
using server_testing::number;
using server_testing::Response;
using testing::HasSubstr;

// --- chat completions -----------------------------------------------------------------------------------------------

/// A stream's message, put together as clients do it.
struct Joined {
  std::string reasoning;
  std::string content;
  std::vector<std::string> names;
  std::vector<std::string> ids;
  std::vector<std::string> arguments;
  std::string finish;
  Json usage;
  bool is_done = false;
};

Joined join_chat(const Response& response) {
  Joined joined;
  for (const Event& event : response.events()) {
    if (event.data == "[DONE]") {
      joined.is_done = true;
      continue;
    }
    const Json chunk = parse_json(event.data);
    if (const Json* usage = chunk.find("usage"); usage != nullptr && !usage->is_null()) joined.usage = *usage;
    if (at(chunk, "choices").as_array().empty()) continue;
    const Json& choice = at(chunk, "choices", 0);
    const Json& delta = at(choice, "delta");
    const auto append = [&delta](std::string_view key, std::string& to) {
      if (const Json* text = delta.find(key); text != nullptr && text->is_string()) to += text->as_string();
    };
    append("content", joined.content);
    append("reasoning_content", joined.reasoning);
    if (const Json* calls = delta.find("tool_calls")) {
      const Json& call = calls->as_array().front();
      const auto index = static_cast<size_t>(number(at(call, "index")));
      if (call.find("id") != nullptr) {
        EXPECT_EQ(index, joined.names.size());
        joined.ids.push_back(at(call, "id").as_string());
        joined.names.push_back(at(call, "function", "name").as_string());
        joined.arguments.emplace_back();
      }
      joined.arguments.at(index) += at(call, "function", "arguments").as_string();
    }
    if (at(choice, "finish_reason").is_string()) joined.finish = at(choice, "finish_reason").as_string();
  }
  return joined;
}

TEST_F(DialectsTest, ChatStreamJoinedIsTheWholeAnswer) {
  for (const std::string& rest : {user("words") + "}", user("calls") + "," + std::string(kChatTools) + "}"}) {
    const Json whole = post("/v1/chat/completions", rest).json();
    const std::string streaming =
        rest.substr(0, rest.size() - 1) + R"(,"stream":true,"stream_options":{"include_usage":true}})";
    const Joined joined = join_chat(post("/v1/chat/completions", streaming));
    const Json& message = at(whole, "choices", 0, "message");
    EXPECT_EQ(joined.content, at(message, "content").as_string());
    EXPECT_EQ(joined.reasoning, at(message, "reasoning_content").as_string());
    EXPECT_EQ(joined.finish, at(whole, "choices", 0, "finish_reason").as_string());
    EXPECT_TRUE(joined.is_done);
    EXPECT_EQ(number(at(joined.usage, "completion_tokens")), number(at(whole, "usage", "completion_tokens")));
    EXPECT_EQ(number(at(joined.usage, "prompt_tokens")), number(at(whole, "usage", "prompt_tokens")));
    const Json* calls = message.find("tool_calls");
    ASSERT_EQ(joined.names.size(), calls == nullptr ? 0 : calls->as_array().size());
    for (size_t i = 0; i < joined.names.size(); ++i) {
      EXPECT_EQ(joined.names[i], at(*calls, i, "function", "name").as_string());
      EXPECT_EQ(joined.arguments[i], at(*calls, i, "function", "arguments").as_string());
    }
  }
}

TEST_F(DialectsTest, ChatAnswersWithTextReasoningAndCalls) {
  const Json words = post("/v1/chat/completions", user("words") + "}").json();
  EXPECT_EQ(at(words, "choices", 0, "message", "reasoning_content").as_string(), "First I think.");
  EXPECT_EQ(at(words, "choices", 0, "message", "content").as_string(), "Then I \"answer\".\nTwice.");
  EXPECT_EQ(at(words, "choices", 0, "finish_reason").as_string(), "stop");
  const Json calls = post("/v1/chat/completions", user("calls") + "," + std::string(kChatTools) + "}").json();
  EXPECT_EQ(at(calls, "choices", 0, "finish_reason").as_string(), "tool_calls");
  const Json& list = at(calls, "choices", 0, "message", "tool_calls");
  EXPECT_EQ(write_json(parse_json(at(list, 0, "function", "arguments").as_string())),
            R"({"city": "Rome \"x\"\n", "n": {"a": [1, {"b": null}]}})");
  EXPECT_EQ(at(list, 1, "function", "name").as_string(), "box::put");
  EXPECT_EQ(at(list, 1, "function", "arguments").as_string(), "{}");
  EXPECT_NE(at(list, 0, "id").as_string(), at(list, 1, "id").as_string());
}

TEST_F(DialectsTest, AStreamWithoutUsageAskedForHasNone) {
  const Response response = post("/v1/chat/completions", user("words") + R"(,"stream":true})");
  EXPECT_EQ(response.header("Content-Type"), "text/event-stream");
  EXPECT_THAT(response.body, testing::Not(HasSubstr("usage")));
  const Response continuous = post(
      "/v1/chat/completions", user("words") + R"(,"stream":true,"stream_options":{"continuous_usage_stats":true}})");
  EXPECT_THAT(continuous.body, HasSubstr("\"completion_tokens\":3"));
}

TEST_F(DialectsTest, UsageAddsUpAndTellsOfTheCache) {
  const std::string rest = R"("messages":[{"role":"user","content":"a prompt that is asked twice, words"}]})";
  (void)post("/v1/chat/completions", rest);
  const Json usage = at(post("/v1/chat/completions", rest).json(), "usage");
  const int64_t prompt = number(at(usage, "prompt_tokens"));
  EXPECT_EQ(number(at(usage, "prompt_cache_hit_tokens")), prompt - 1);
  EXPECT_EQ(number(at(usage, "prompt_tokens_details", "cached_tokens")), prompt - 1);
  EXPECT_EQ(number(at(usage, "prompt_cache_hit_tokens")) + number(at(usage, "prompt_cache_miss_tokens")), prompt);
  EXPECT_EQ(number(at(usage, "total_tokens")), prompt + number(at(usage, "completion_tokens")));
  EXPECT_GT(number(at(usage, "completion_tokens_details", "reasoning_tokens")), 0);
  EXPECT_EQ(at(usage, "prompt_cache", "tier").as_string(), "snapshot_ram");
  EXPECT_EQ(at(usage, "prompt_cache", "end").as_string(), "complete");
  EXPECT_EQ(number(at(usage, "prompt_cache", "hit")) + number(at(usage, "prompt_cache", "miss")), prompt);
}

TEST_F(DialectsTest, ChatEndsAtLimitsAndStops) {
  const Json cut =
      post("/v1/chat/completions", user("endless") + R"(,"max_tokens":5,"max_completion_tokens":9})").json();
  EXPECT_EQ(at(cut, "choices", 0, "finish_reason").as_string(), "length");
  EXPECT_EQ(number(at(cut, "usage", "completion_tokens")), 5);
  const Json stopped = post("/v1/chat/completions", user("words") + R"(,"stop":["zz","answer"]})").json();
  EXPECT_EQ(at(stopped, "choices", 0, "message", "content").as_string(), "Then I \"");
  EXPECT_EQ(at(stopped, "choices", 0, "finish_reason").as_string(), "stop");
  const Json off = post("/v1/chat/completions", user("plain") + R"(,"thinking":{"type":"disabled"}})").json();
  EXPECT_EQ(at(off, "choices", 0, "message", "content").as_string(), "no thinking at all");
  EXPECT_TRUE(at(off, "choices", 0, "message", "reasoning_content").is_null());
}

TEST_F(DialectsTest, ChatChoicesAreNumbered) {
  const Json whole = post("/v1/chat/completions", user("words") + R"(,"n":2})").json();
  ASSERT_EQ(at(whole, "choices").as_array().size(), 2U);
  EXPECT_EQ(number(at(whole, "choices", 1, "index")), 1);
  EXPECT_EQ(at(whole, "choices", 0, "message", "content").as_string(),
            at(whole, "choices", 1, "message", "content").as_string());
  const Response stream = post("/v1/chat/completions", user("words") + R"(,"n":2,"stream":true})");
  EXPECT_THAT(stream.body, HasSubstr(R"("index":1,"delta":{"content":")"));
}

TEST_F(DialectsTest, ChatLogprobsAreSplitWhereReasoningEndsAndJoin) {
  const std::string rest = user("words") + R"(,"logprobs":true,"top_logprobs":2)";
  const Json whole = post("/v1/chat/completions", rest + "}").json();
  const Json& logprobs = at(whole, "choices", 0, "logprobs");
  const size_t tokens = at(logprobs, "content").as_array().size() + at(logprobs, "reasoning_content").as_array().size();
  EXPECT_EQ(static_cast<int64_t>(tokens), number(at(whole, "usage", "completion_tokens")));
  EXPECT_EQ(at(logprobs, "content", 0, "top_logprobs").as_array().size(), 2U);
  size_t streamed = 0;
  for (const Event& event : post("/v1/chat/completions", rest + R"(,"stream":true})").events()) {
    if (event.data == "[DONE]") continue;
    const Json part = at(parse_json(event.data), "choices", 0, "logprobs");
    if (part.is_null()) continue;
    streamed += at(part, "content").as_array().size() + at(part, "reasoning_content").as_array().size();
  }
  EXPECT_EQ(streamed, tokens);
}

TEST_F(DialectsTest, ChatGivesTheIdsOfItsTokensWhenAsked) {
  const Json whole =
      post("/v1/chat/completions", user("endless") + R"(,"max_tokens":6,"return_token_ids":true})").json();
  EXPECT_EQ(at(whole, "choices", 0, "token_ids").as_array().size(), 6U);
  EXPECT_EQ(post("/v1/chat/completions", user("words") + "}").body.find("token_ids"), std::string::npos);
}

TEST_F(DialectsTest, ChatGoesOnWithTheLastMessage) {
  const Json whole =
      post("/v1/chat/completions",
           R"("messages":[{"role":"user","content":"words"},{"role":"assistant","content":"So","prefix":true}]})")
          .json();
  EXPECT_TRUE(at(whole, "choices", 0, "message", "reasoning_content").is_null());
}

TEST_F(DialectsTest, TokensOfAChatAreThoseOfItsPrompt) {
  const Json whole = post("/v1/chat/completions", user("words") + "}").json();
  const Json tokens = post("/tokenize", user("words") + R"(,"return_token_strs":true})").json();
  EXPECT_EQ(number(at(tokens, "count")), number(at(whole, "usage", "prompt_tokens")));
  EXPECT_EQ(at(tokens, "token_strs").as_array().size(), at(tokens, "tokens").as_array().size());
  const Json text = post("/detokenize", R"("tokens":)" + write_json(at(tokens, "tokens")) + "}").json();
  EXPECT_THAT(at(text, "prompt").as_string(), HasSubstr("words"));
  const Json raw = post("/tokenize", R"("prompt":"abc","add_special_tokens":false})").json();
  EXPECT_EQ(at(post("/detokenize", R"("tokens":)" + write_json(at(raw, "tokens")) + "}").json(), "prompt").as_string(),
            "abc");
}

// --- completions ----------------------------------------------------------------------------------------------------

std::string join_completion(const Response& response) {
  std::string text;
  for (const Event& event : response.events()) {
    if (event.data == "[DONE]") continue;
    const Json piece = parse_json(event.data);
    if (!at(piece, "choices").as_array().empty()) text += at(piece, "choices", 0, "text").as_string();
  }
  return text;
}

TEST_F(DialectsTest, CompletionStreamJoinedIsTheWholeAnswer) {
  for (const std::string rest : {R"("prompt":"say","max_tokens":100)", R"("prompt":"say","max_tokens":4,"echo":true)",
                                 R"("prompt":"say","max_tokens":100,"stop":"STOP")",
                                 R"("prompt":"def f(","suffix":"return 1","max_tokens":9)"}) {
    const Json whole = post("/v1/completions", rest + "}").json();
    EXPECT_EQ(join_completion(post("/v1/completions", rest + R"(,"stream":true})")),
              at(whole, "choices", 0, "text").as_string());
    EXPECT_EQ(at(whole, "object").as_string(), "text_completion");
  }
}

TEST_F(DialectsTest, CompletionsOfManyPromptsAndForms) {
  const Json two = post("/v1/completions", R"("prompt":["endless a","endless b"],"n":2,"max_tokens":3})").json();
  ASSERT_EQ(at(two, "choices").as_array().size(), 4U);
  EXPECT_EQ(number(at(two, "choices", 3, "index")), 3);
  EXPECT_EQ(number(at(two, "usage", "completion_tokens")), 12);
  const Json ids = post("/v1/completions", R"("prompt":[0,5,6],"max_tokens":2})").json();
  EXPECT_EQ(number(at(ids, "usage", "prompt_tokens")), 3);
  EXPECT_EQ(at(ids, "choices", 0, "finish_reason").as_string(), "length");
  const Json lists = post("/v1/completions", R"("prompt":[[0,5],[0,6,7]],"max_tokens":2})").json();
  EXPECT_EQ(number(at(lists, "usage", "prompt_tokens")), 5);
  EXPECT_EQ(number(at(post("/v1/completions", R"("prompt":"endless"})").json(), "usage", "completion_tokens")), 16);
}

TEST_F(DialectsTest, CompletionLogprobsStandBesideTheirTokens) {
  const Json whole =
      post("/v1/completions", R"("prompt":"say","max_tokens":6,"logprobs":2,"return_token_ids":true})").json();
  const Json& logprobs = at(whole, "choices", 0, "logprobs");
  ASSERT_EQ(at(logprobs, "tokens").as_array().size(), 6U);
  EXPECT_EQ(at(logprobs, "token_logprobs").as_array().size(), 6U);
  EXPECT_EQ(at(logprobs, "top_logprobs", 0).as_object().size(), 2U);
  EXPECT_EQ(number(at(logprobs, "text_offset", 0)), 0);
  EXPECT_EQ(at(whole, "choices", 0, "token_ids").as_array().size(), 6U);
}

// --- messages -------------------------------------------------------------------------------------------------------

constexpr std::string_view kMessageTools =
    R"("tools":[{"name":"get","input_schema":{"type":"object"}},{"name":"box::put"},)"
    R"({"type":"web_search_20250305","name":"web"}])";

/// The content of a stream of events, as blocks.
Json join_messages(const Response& response, Json& last) {
  Json::Array blocks;
  std::string json_text;
  for (const Event& event : response.events()) {
    const Json data = parse_json(event.data);
    EXPECT_EQ(at(data, "type").as_string(), event.name);
    if (event.name == "content_block_start") {
      EXPECT_EQ(number(at(data, "index")), static_cast<int64_t>(blocks.size()));
      blocks.push_back(at(data, "content_block"));
      json_text.clear();
    } else if (event.name == "content_block_delta") {
      const Json& delta = at(data, "delta");
      const std::string& type = at(delta, "type").as_string();
      Json& block = blocks.back();
      if (type == "input_json_delta") {
        json_text += at(delta, "partial_json").as_string();
      } else {
        const std::string key = type == "text_delta" ? "text" : type == "thinking_delta" ? "thinking" : "signature";
        block.set(key, Json::make_string(at(block, key).as_string() + at(delta, key).as_string()));
      }
    } else if (event.name == "content_block_stop" && !json_text.empty()) {
      blocks.back().set("input", parse_json(json_text));
    } else if (event.name == "message_delta") {
      last = data;
    }
  }
  return Json::make_array(std::move(blocks));
}

/// Without what every answer has anew: ids and signatures.
Json without_ids(Json blocks) {
  for (Json& block : blocks.as_array()) {
    for (const std::string_view key : {"id", "signature"}) {
      if (block.find(key) != nullptr) block.set(key, Json());
    }
  }
  return blocks;
}

TEST_F(DialectsTest, MessageStreamJoinedIsTheWholeAnswer) {
  for (const std::string& rest : {user("words"), user("calls") + "," + std::string(kMessageTools)}) {
    const Json whole = post("/v1/messages", rest + R"(,"max_tokens":500})").json();
    Json last;
    const Json blocks = join_messages(post("/v1/messages", rest + R"(,"max_tokens":500,"stream":true})"), last);
    EXPECT_EQ(write_json(without_ids(blocks)), write_json(without_ids(at(whole, "content"))));
    EXPECT_EQ(at(last, "delta", "stop_reason").as_string(), at(whole, "stop_reason").as_string());
    EXPECT_EQ(number(at(last, "usage", "output_tokens")), number(at(whole, "usage", "output_tokens")));
  }
}

TEST_F(DialectsTest, MessagesAnswerWithBlocks) {
  const Json calls =
      post("/v1/messages", user("calls") + "," + std::string(kMessageTools) + R"(,"max_tokens":500})").json();
  EXPECT_EQ(at(calls, "stop_reason").as_string(), "tool_use");
  EXPECT_EQ(at(calls, "content", 0, "type").as_string(), "thinking");
  EXPECT_NE(at(calls, "content", 0, "signature").as_string(), "");
  EXPECT_EQ(at(calls, "content", 1, "text").as_string(), "Two calls.");
  EXPECT_EQ(write_json(at(calls, "content", 2, "input")), R"({"city": "Rome \"x\"\n", "n": {"a": [1, {"b": null}]}})");
  EXPECT_EQ(at(calls, "content", 3, "name").as_string(), "box::put");
  const Json stopped = post("/v1/messages", user("words") + R"(,"max_tokens":500,"stop_sequences":["answer"]})").json();
  EXPECT_EQ(at(stopped, "stop_reason").as_string(), "stop_sequence");
  EXPECT_EQ(at(stopped, "stop_sequence").as_string(), "answer");
  const Json cut = post("/v1/messages", user("endless") + R"(,"max_tokens":5})").json();
  EXPECT_EQ(at(cut, "stop_reason").as_string(), "max_tokens");
}

TEST_F(DialectsTest, CountedTokensAreThoseOfTheRequest) {
  const std::string rest = R"("system":[{"type":"text","text":"x-anthropic-billing-header: cch=1"},{"type":"text",)"
                           R"("text":"Be brief.","cache_control":{"type":"ephemeral"}}],)" +
                           user("count me, words") + "," + std::string(kMessageTools);
  const Json counted = post("/v1/messages/count_tokens", rest + "}").json();
  for (int i = 0; i < 2; ++i) {
    const Json usage = at(post("/v1/messages", rest + R"(,"max_tokens":50})").json(), "usage");
    EXPECT_EQ(number(at(counted, "input_tokens")),
              number(at(usage, "input_tokens")) + number(at(usage, "cache_read_input_tokens")));
    if (i == 1) {
      EXPECT_EQ(number(at(usage, "input_tokens")), 1) << "all but the last token was there";
    }
  }
}

TEST_F(DialectsTest, TheBillingLineDoesNotChangeThePrompt) {
  const auto count = [](const std::string& system) {
    return number(at(post("/v1/messages/count_tokens", system + user("hello") + "}").json(), "input_tokens"));
  };
  const int64_t plain = count(R"("system":"Be brief.",)");
  EXPECT_EQ(count(R"("system":"x-anthropic-billing-header: a=1; cch=12345\nBe brief.",)"), plain);
  EXPECT_EQ(
      count(R"("system":[{"type":"text","text":"x-anthropic-billing-header: b"},{"type":"text","text":"Be brief."}],)"),
      plain);
}

// --- responses ------------------------------------------------------------------------------------------------------

constexpr std::string_view kResponseTools =
    R"("tools":[{"type":"function","name":"get","parameters":{"type":"object"}},)"
    R"({"type":"namespace","name":"box","description":"d","tools":[{"type":"function","name":"put"}]},)"
    R"({"type":"custom","name":"patch","description":"p","format":{"type":"grammar","syntax":"lark",)"
    R"("definition":"start: x"}},)"
    R"({"type":"web_search"}])";

/// The final response of a stream, after checking that its events tell the same.
Json final_response(const Response& response) {
  Json last;
  int64_t sequence = 0;
  Json::Array items;
  std::string text;
  for (const Event& event : response.events()) {
    const Json data = parse_json(event.data);
    EXPECT_EQ(at(data, "type").as_string(), event.name);
    EXPECT_EQ(number(at(data, "sequence_number")), sequence++);
    if (event.name == "response.output_item.added") {
      EXPECT_EQ(number(at(data, "output_index")), static_cast<int64_t>(items.size()));
      text.clear();
    } else if (event.name.ends_with(".delta")) {
      text += at(data, "delta").as_string();
    } else if (event.name.ends_with("_text.done")) {
      EXPECT_EQ(text, at(data, "text").as_string());
    } else if (event.name.ends_with("arguments.done")) {
      EXPECT_EQ(text, at(data, "arguments").as_string());
    } else if (event.name.ends_with("input.done")) {
      EXPECT_EQ(text, at(data, "input").as_string());
    } else if (event.name == "response.output_item.done") {
      items.push_back(at(data, "item"));
    } else if (data.find("response") != nullptr) {
      last = at(data, "response");
    }
  }
  EXPECT_EQ(write_json(Json::make_array(items)), write_json(at(last, "output")));
  return last;
}

std::string comparable(Json response) {
  for (Json& item : response.as_array()) {
    for (const std::string_view key : {"id", "call_id"}) {
      if (item.find(key) != nullptr) item.set(key, Json());
    }
  }
  return write_json(response);
}

TEST_F(DialectsTest, ResponseStreamTellsTheWholeResponse) {
  for (const std::string text : {"words", "calls", "custom"}) {
    const std::string rest = R"("input":")" + text + R"(",)" + std::string(kResponseTools);
    const Json whole = post("/v1/responses", rest + "}").json();
    const Json streamed = final_response(post("/v1/responses", rest + R"(,"stream":true})"));
    EXPECT_EQ(comparable(at(streamed, "output")), comparable(at(whole, "output")));
    EXPECT_EQ(at(streamed, "status").as_string(), "completed");
    EXPECT_EQ(number(at(streamed, "usage", "output_tokens")), number(at(whole, "usage", "output_tokens")));
  }
}

TEST_F(DialectsTest, ResponsesAnswerWithItems) {
  const Json calls = post("/v1/responses", R"("input":"calls",)" + std::string(kResponseTools) + "}").json();
  EXPECT_EQ(at(calls, "output", 0, "type").as_string(), "reasoning");
  EXPECT_EQ(at(calls, "output", 0, "content", 0, "text").as_string(), "Hm.");
  EXPECT_EQ(at(calls, "output", 1, "content", 0, "text").as_string(), "Two calls.");
  EXPECT_EQ(at(calls, "output", 2, "name").as_string(), "get");
  EXPECT_EQ(at(calls, "output", 3, "name").as_string(), "put");
  EXPECT_EQ(at(calls, "output", 3, "namespace").as_string(), "box");
  const Json custom = post("/v1/responses", R"("input":"custom",)" + std::string(kResponseTools) + "}").json();
  EXPECT_EQ(at(custom, "output", 0, "type").as_string(), "custom_tool_call");
  EXPECT_EQ(at(custom, "output", 0, "input").as_string(), "a \"b\"\nc");
  const Json cut = post("/v1/responses", R"("input":"endless","max_output_tokens":5})").json();
  EXPECT_EQ(at(cut, "status").as_string(), "incomplete");
  EXPECT_EQ(at(cut, "incomplete_details", "reason").as_string(), "max_output_tokens");
  EXPECT_EQ(at(cut, "output", 0, "status").as_string(), "incomplete");
  EXPECT_EQ(at(cut, "store").as_bool(), false);
}

TEST_F(DialectsTest, AToolLoopGoesOnInEveryDialect) {
  const Json chat = post("/v1/chat/completions",
                         R"("messages":[{"role":"user","content":"calls"},{"role":"assistant","content":"Two calls.",)"
                         R"("reasoning_content":"Hm.",)"
                         R"("tool_calls":[{"id":"1","type":"function","function":{"name":"get","arguments":"{}"}}]},)"
                         R"({"role":"tool","tool_call_id":"1","content":"words"}],)" +
                             std::string(kChatTools) + "}")
                        .json();
  EXPECT_EQ(at(chat, "choices", 0, "message", "content").as_string(), "Then I \"answer\".\nTwice.");
  const Json message =
      post("/v1/messages",
           R"("max_tokens":500,"messages":[{"role":"user","content":"calls"},{"role":"assistant",)"
           R"("content":[{"type":"thinking","thinking":"Hm.","signature":"s"},)"
           R"({"type":"text","text":"Two calls."},{"type":"tool_use","id":"1","name":"get","input":{}}]},)"
           R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text",)"
           R"("text":"words"}]}]}],)" +
               std::string(kMessageTools) + "}")
          .json();
  EXPECT_EQ(at(message, "content", 1, "text").as_string(), "Then I \"answer\".\nTwice.");
  const Json response =
      post("/v1/responses",
           R"("input":[{"role":"user","content":"calls"},{"type":"reasoning","summary":[],)"
           R"("content":[{"type":"reasoning_text","text":"Hm."}]},)"
           R"({"type":"message","role":"assistant","content":[{"type":"output_text","text":"Two calls."}]},)"
           R"({"type":"function_call","call_id":"1","name":"get","arguments":"{}"},)"
           R"({"type":"function_call_output","call_id":"1","output":"words"}],)" +
               std::string(kResponseTools) + "}")
          .json();
  EXPECT_EQ(at(response, "output", 1, "content", 0, "text").as_string(), "Then I \"answer\".\nTwice.");
}

/// A picture of one pixel.
constexpr std::string_view kPixel =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

TEST_F(DialectsTest, PicturesAreReadInEveryDialect) {
  const auto ask_all = [](const std::string& data) {
    const std::string url = "data:image/png;base64," + data;
    const Response chat =
        post("/v1/chat/completions",
             R"("messages":[{"role":"user","content":[{"type":"text","text":"words"},{"type":"image_url",)"
             R"("image_url":{"url":")" +
                 url + R"("}}]}]})");
    const Response message =
        post("/v1/messages", R"("max_tokens":500,"messages":[{"role":"user","content":[{"type":"text","text":"words"},)"
                             R"({"type":"image","source":{"type":"base64","media_type":"image/png","data":")" +
                                 data + R"("}}]}]})");
    const Response response =
        post("/v1/responses",
             R"("input":[{"role":"user","content":[{"type":"input_text","text":"words"},{"type":"input_image",)"
             R"("image_url":")" +
                 url + R"("}]}]})");
    return std::vector<Response>{chat, message, response};
  };
  const std::vector<Response> answers = ask_all(std::string(kPixel));
  const int64_t prompt = number(at(answers[0].json(), "usage", "prompt_tokens"));
  EXPECT_GT(prompt, number(at(post("/v1/chat/completions", user("words") + "}").json(), "usage", "prompt_tokens")));
  const Json usage = at(answers[1].json(), "usage");
  EXPECT_EQ(number(at(usage, "input_tokens")) + number(at(usage, "cache_read_input_tokens")), prompt);
  EXPECT_EQ(number(at(answers[2].json(), "usage", "input_tokens")), prompt);
  for (const Response& refused : ask_all("bm8gcGljdHVyZQ=="))
    EXPECT_EQ(refused.status, 400) << refused.body;
}

/// By a server of its own, which fetches a picture from the other.
TEST_F(DialectsTest, LinksToPicturesAreFollowedWhereTheServerMay) {
  const std::string png = decode_base64(kPixel, "pixel", 1000);
  HttpServerOptions http;
  http.port = 0;
  HttpServer pictures(http, [&](const std::shared_ptr<HttpExchange>& exchange) {
    HttpAnswer answer;
    answer.content_type = "image/png";
    answer.body = exchange->request().path == "/pixel.png" ? png : "no picture";
    exchange->respond(std::move(answer));
  });
  const auto ask_with = [&](const std::string& url, uint16_t port) {
    const std::string source = R"({"type":"image","source":{"type":"url","url":")" + url + R"("}})";
    return std::vector<Response>{
        server_testing::ask(port, "POST", "/v1/chat/completions",
                            R"({"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":"words"},)"
                            R"({"type":"image_url","image_url":{"url":")" +
                                url + R"("}}]}]})"),
        server_testing::ask(port, "POST", "/v1/messages",
                            R"({"model":"tiny","max_tokens":99,"messages":[{"role":"user","content":[{"type":"text",)"
                            R"("text":"words"},)" +
                                source + "]}]}"),
        server_testing::ask(
            port, "POST", "/v1/responses",
            R"({"model":"tiny","input":[{"role":"user","content":[{"type":"input_text","text":"words"},)"
            R"({"type":"input_image","image_url":")" +
                url + R"("}]}]})")};
  };
  for (const Response& refused : ask_with(pictures.url() + "/pixel.png", server->http().port())) {
    EXPECT_EQ(refused.status, 400);
    EXPECT_THAT(refused.body, HasSubstr("--allowed-media-domains"));
  }
  EngineServiceOptions options;
  options.script = checkpoint->path() / "script.jsonl";
  options.media_hosts = {"127.0.0.1"};
  const std::unique_ptr<Service> following =
      make_engine_service(service_testing::load_roomy_model(*checkpoint), options);
  ApiServerOptions api;
  api.http.port = 0;
  api.model_names = {"tiny"};
  ApiServer follower(std::move(api));
  follower.set_service(*following);
  for (const Response& answer : ask_with(pictures.url() + "/pixel.png", follower.http().port())) {
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("Twice"));
  }
  for (const Response& refused : ask_with(pictures.url() + "/other", follower.http().port()))
    EXPECT_EQ(refused.status, 400) << refused.body;
}

TEST_F(DialectsTest, EveryAnswerSaysThatItWasReplayed) {
  const Response response = post("/v1/chat/completions", user("words") + "}");
  EXPECT_EQ(response.header("x-tidepool-script"), "script.jsonl");
  EXPECT_EQ(at(response.json(), "system_fingerprint").as_string(), "tidepool-1+script");
}

}  // namespace
}  // namespace tidepool
