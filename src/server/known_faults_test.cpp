// Families of faults that servers for this model have had, each seen from outside.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/dialect_test_support.h"

namespace tidepool {
namespace {

using server_testing::at;
using server_testing::kChatTools;
using server_testing::number;
using server_testing::Response;
using testing::HasSubstr;
using testing::Not;

class KnownFaultsTest : public server_testing::DialectsTest {
 protected:
  /// The ids of a chat's prompt; `rest` as post() takes it.
  static std::string ids(const std::string& rest) {
    const Response response = post("/tokenize", rest);
    EXPECT_EQ(response.status, 200) << response.body;
    return write_json(at(response.json(), "tokens"));
  }
  static std::string text(const std::string& rest) {
    return at(post("/detokenize", R"("tokens":)" + ids(rest) + "}").json(), "prompt").as_string();
  }
  static int64_t count(const std::string& rest) { return number(at(post("/tokenize", rest).json(), "count")); }
  static Json chat(const std::string& rest) { return post("/v1/chat/completions", rest).json(); }
};

// --- prompts --------------------------------------------------------------------------------------------------------

TEST_F(KnownFaultsTest, ControlTokensInAUsersTextAreText) {
  const int64_t plain = count(user("") + "}");
  for (const std::string token : {"<think>", "</think>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"}) {
    EXPECT_GT(count(user(token) + "}"), plain + 1) << token << " must not count as one token";
    EXPECT_THAT(text(user(token) + "}"), HasSubstr(token));
  }
}

TEST_F(KnownFaultsTest, EffortsAreThoseOfTheModel) {
  const auto line = [](const std::string& effort) {
    return text(user("a") + R"(,"reasoning_effort":)" + effort + "}");
  };
  for (const auto& [effort, number] : std::vector<std::pair<std::string, std::string>>{{"\"low\"", "50"},
                                                                                       {"\"minimal\"", "50"},
                                                                                       {"\"medium\"", "75"},
                                                                                       {"\"high\"", "75"},
                                                                                       {"\"max\"", "100"},
                                                                                       {"1", "1"},
                                                                                       {"100", "100"}}) {
    EXPECT_THAT(line(effort), HasSubstr("Reasoning Effort: " + number + " ")) << effort;
  }
  for (const std::string wrong : {"0", "101", "50.5", "\"50\"", "true"})
    EXPECT_EQ(post("/v1/chat/completions", user("a") + R"(,"reasoning_effort":)" + wrong + "}").status, 400) << wrong;
}

TEST_F(KnownFaultsTest, OldReasoningStaysOnlyWithTools) {
  const std::string history = R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b",)"
                              R"("reasoning_content":"long reasoning"},{"role":"user","content":"c"}])";
  EXPECT_THAT(text(history + "}"), Not(HasSubstr("long reasoning")));
  EXPECT_THAT(text(history + "," + std::string(kChatTools) + "}"), HasSubstr("long reasoning"));
}

TEST_F(KnownFaultsTest, APrefixIsContinuedAndNoTurnBegun) {
  const std::string prefix =
      R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":"The answer is","prefix":true}]})";
  EXPECT_TRUE(text(prefix).ends_with("The answer is"));
  const std::string continued =
      R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":"The answer is"}],)"
      R"("continue_final_message":true,"add_generation_prompt":false})";
  EXPECT_EQ(ids(continued), ids(prefix));
}

TEST_F(KnownFaultsTest, ToolsThatMayNotBeCalledAreNotShown) {
  EXPECT_EQ(ids(user("a") + "," + std::string(kChatTools) + R"(,"tool_choice":"none"})"), ids(user("a") + "}"));
}

TEST_F(KnownFaultsTest, ResultsFollowTheOrderOfCalls) {
  const auto history = [](const std::string& results) {
    return R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[)"
           R"({"id":"1","type":"function","function":{"name":"get","arguments":"{}"}},)"
           R"({"id":"2","type":"function","function":{"name":"get","arguments":"{}"}}]},)" +
           results + "]," + std::string(kChatTools) + "}";
  };
  const std::string first = R"({"role":"tool","tool_call_id":"1","content":"one"})";
  const std::string second = R"({"role":"tool","tool_call_id":"2","content":"two"})";
  EXPECT_EQ(ids(history(first + "," + second)), ids(history(second + "," + first)));
  for (const std::string& wrong : {first, first + "," + first, first + "," + second + "," + second})
    EXPECT_EQ(post("/v1/chat/completions", history(wrong)).status, 400) << wrong;
}

TEST_F(KnownFaultsTest, TheSameConversationIsTheSamePromptInEveryDialect) {
  const int64_t chat_tokens =
      count(R"("messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant",)"
            R"("content":"b"},{"role":"user","content":"c"}]})");
  const Json messages =
      post("/v1/messages/count_tokens",
           R"("system":"s","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
           R"({"role":"user","content":"c"}]})")
          .json();
  EXPECT_EQ(number(at(messages, "input_tokens")), chat_tokens);
  const Json response =
      post("/v1/responses", R"("instructions":"s","max_output_tokens":1,"input":[{"role":"user","content":"a"},)"
                            R"({"role":"assistant","content":"b"},{"role":"user","content":"c"}]})")
          .json();
  EXPECT_EQ(number(at(response, "usage", "input_tokens")), chat_tokens);
}

// --- reasoning that clients do not send back ------------------------------------------------------------------------

TEST_F(KnownFaultsTest, MissingReasoningDoesNotCostTheCache) {
  const std::string question = R"({"role":"user","content":"please make the calls now"})";
  const Json first = chat(R"("messages":[)" + question + "]," + std::string(kChatTools) + "}");
  const Json& message = at(first, "choices", 0, "message");
  const std::string calls = write_json(at(message, "tool_calls"));
  const auto follow_up = [&](const std::string& reasoning) {
    return chat(R"("messages":[)" + question + R"(,{"role":"assistant","content":)" +
                write_json(at(message, "content")) + reasoning + R"(,"tool_calls":)" + calls + "}," +
                R"({"role":"tool","tool_call_id":)" + write_json(at(message, "tool_calls", 0, "id")) +
                R"(,"content":"x"},{"role":"tool","tool_call_id":)" + write_json(at(message, "tool_calls", 1, "id")) +
                R"(,"content":"y"}],)" + std::string(kChatTools) + "}");
  };
  const int64_t known = number(at(first, "usage", "prompt_tokens")) + number(at(first, "usage", "completion_tokens"));
  const Json without = follow_up("");
  EXPECT_GE(number(at(without, "usage", "prompt_cache_hit_tokens")), known - 1);
  const Json with = follow_up(R"(,"reasoning_content":)" + write_json(at(message, "reasoning_content")));
  EXPECT_EQ(number(at(with, "usage", "prompt_tokens")), number(at(without, "usage", "prompt_tokens")));
}

TEST_F(KnownFaultsTest, ThinkingComesBackWhateverItsSignature) {
  const auto count_with = [](const std::string& signature) {
    return number(at(post("/v1/messages/count_tokens",
                          R"("tools":[{"name":"get","input_schema":{}}],"messages":[{"role":"user","content":"a"},)"
                          R"({"role":"assistant","content":[{"type":"thinking","thinking":"deep thought")" +
                              signature +
                              R"(},{"type":"tool_use","id":"1","name":"get","input":{}}]},{"role":"user",)"
                              R"("content":[{"type":"tool_result","tool_use_id":"1","content":"r"}]}]})")
                         .json(),
                     "input_tokens"));
  };
  const int64_t tokens = count_with(R"(,"signature":"s")");
  EXPECT_EQ(count_with(""), tokens);
  EXPECT_EQ(count_with(R"(,"signature":"other")"), tokens);
}

// --- outputs --------------------------------------------------------------------------------------------------------

TEST_F(KnownFaultsTest, NothingOfAStopStringIsSent) {
  for (const std::string stop : {"Twice", "Tw", "\\nTwice", "answer\\\".\\nTwice.", "."}) {
    const std::string rest = user("words") + R"(,"stop":")" + stop + "\"";
    const std::string whole = at(chat(rest + "}"), "choices", 0, "message", "content").as_string();
    EXPECT_THAT(std::string("Then I \"answer\".\nTwice."), testing::StartsWith(whole));
    std::string streamed;
    for (const server_testing::Event& event : post("/v1/chat/completions", rest + R"(,"stream":true})").events()) {
      if (event.data == "[DONE]") continue;
      const Json chunk = parse_json(event.data);
      const Json* content = at(chunk, "choices", 0, "delta").find("content");
      if (content != nullptr && content->is_string()) streamed += content->as_string();
    }
    EXPECT_EQ(streamed, whole);
  }
}

TEST_F(KnownFaultsTest, MarkupNeverShowsInContent) {
  for (const std::string& tools : {"," + std::string(kChatTools), std::string()}) {
    const Json answer = chat(user("calls") + tools + "}");
    const std::string written = write_json(answer);
    if (!tools.empty()) {
      EXPECT_THAT(written, Not(HasSubstr("DSML")));
    }
    EXPECT_THAT(written, Not(HasSubstr("end▁of▁sentence")));
    EXPECT_THAT(written, Not(HasSubstr("</think>")));
  }
}

TEST_F(KnownFaultsTest, ThinkingThatIsCutShortIsReasoningAndNotContent) {
  const Json cut = chat(user("words") + R"(,"max_tokens":3})");
  EXPECT_EQ(at(cut, "choices", 0, "message", "content").as_string(), "");
  EXPECT_NE(at(cut, "choices", 0, "message", "reasoning_content").as_string(), "");
  EXPECT_EQ(at(cut, "choices", 0, "finish_reason").as_string(), "length");
}

TEST_F(KnownFaultsTest, AnEndlessOutputEndsAtItsLimitWhileOthersAreServed) {
  server_testing::Client endless(server->http().port());
  endless.send_request("POST", "/v1/chat/completions",
                       R"({"model":"tiny","messages":[{"role":"user","content":"endless"}],"max_tokens":400})");
  EXPECT_EQ(at(chat(user("words") + "}"), "choices", 0, "finish_reason").as_string(), "stop");
  EXPECT_EQ(at(endless.read_response().json(), "choices", 0, "finish_reason").as_string(), "length");
}

TEST_F(KnownFaultsTest, ALoopIsToldAndEndsAsAtALimitUnlessTheEndIsIgnored) {
  const auto repeating_outputs = [] {
    const std::string text = server_testing::ask(server->http().port(), "GET", "/metrics").body;
    const size_t at = text.find("\ntidepool:repeating_outputs_total{");
    return std::stoi(text.substr(text.find("} ", at) + 2));
  };
  const auto tokens = [](const Json& answer) { return number(at(answer, "usage", "completion_tokens")); };
  const int before = repeating_outputs();
  const std::string endless = user("endless") + R"(,"thinking":{"type":"disabled"})";
  const Json loop = chat(endless + "}");
  EXPECT_EQ(at(loop, "choices", 0, "finish_reason").as_string(), "length");
  EXPECT_GE(tokens(loop), 600);
  EXPECT_LE(tokens(loop), 700);
  EXPECT_EQ(repeating_outputs(), before + 1);
  const Json wanted = chat(endless + R"(,"ignore_eos":true,"max_tokens":800})");
  EXPECT_EQ(tokens(wanted), 800);
  EXPECT_EQ(repeating_outputs(), before + 2);
  EXPECT_EQ(tokens(chat(endless + R"(,"max_tokens":500})")), 500);
  EXPECT_EQ(repeating_outputs(), before + 2) << "half a page is no loop yet";
}

}  // namespace
}  // namespace tidepool
