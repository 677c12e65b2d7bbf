#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "session/prompt_ids.h"
#include "session/service_test_base.h"
#include "text/json.h"

/// What becomes of an answer when the client sends it back. (known faults, groups A and D)
namespace tidepool {
namespace {

using service_testing::kTwoCalls;
using service_testing::message;

constexpr int32_t kEnd = 1;
constexpr int32_t kThinkEnd = 504;

class ServiceHistoryTest : public service_testing::ServiceTest {
 protected:
  static ChatRequest& chat_of(ServiceRequest& request) { return std::get<ChatRequest>(request.prompt); }

  /// The assistant message as the client got it.
  static ChatMessage answer_of(const Result& result, bool with_reasoning) {
    const Completion& completion = result.choices.at(0).completion;
    ChatMessage answer = message(ChatRole::kAssistant, completion.content);
    if (with_reasoning) answer.reasoning = completion.reasoning;
    for (size_t i = 0; i < completion.calls.size(); ++i) {
      ToolCall call;
      call.id = "call_" + std::to_string(i);
      call.name = completion.calls[i].name;
      call.arguments = Json::make_string(completion.calls[i].arguments);
      answer.tool_calls.push_back(std::move(call));
    }
    return answer;
  }
  /// The request goes on with that answer, and with results or another question.
  static ServiceRequest next_turn(ServiceRequest request, const ChatMessage& answer) {
    ChatRequest& chat = chat_of(request);
    chat.messages.push_back(answer);
    for (const ToolCall& call : answer.tool_calls) {
      ChatMessage result = message(ChatRole::kTool, "rain");
      result.tool_call_id = call.id;
      chat.messages.push_back(std::move(result));
    }
    if (answer.tool_calls.empty()) chat.messages.push_back(message(ChatRole::kUser, "and then?"));
    return request;
  }
  /// All that the model has read and written, the end of the turn included.
  static std::vector<int32_t> history_of(const Result& result) {
    std::vector<int32_t> ids = result.prompt_ids;
    ids.insert(ids.end(), result.choices.at(0).ids.begin(), result.choices.at(0).ids.end());
    if (ids.back() != kEnd) ids.push_back(kEnd);
    return ids;
  }
  static void expect_begins_with(const std::vector<int32_t>& ids, const std::vector<int32_t>& beginning) {
    ASSERT_GE(ids.size(), beginning.size());
    const auto [at, unused] = std::ranges::mismatch(beginning, ids);
    EXPECT_EQ(at - beginning.begin(), std::ssize(beginning));
  }
  /// What a service that has seen nothing makes of it.
  static std::vector<int32_t> encode_afresh(const ServiceRequest& request) {
    return make_engine_service(model(), options())->encode(request);
  }
};

/// Known faults 3, 5 and 37: with tools, the whole turn comes back though the client has dropped its reasoning, and all
/// that was computed is found.
TEST_F(ServiceHistoryTest, ToolLoopFindsAllOfItsHistory) {
  const std::unique_ptr<Service> service = scripted(kTwoCalls);
  const ServiceRequest first = chat_with_tools({"weather?"}, 1000);
  const Result answered = run(*service, first);
  for (const bool with_reasoning : {true, false}) {
    const ServiceRequest second = next_turn(first, answer_of(answered, with_reasoning));
    const Result result = run(*service, second);
    expect_begins_with(result.prompt_ids, history_of(answered));
    // Everything but the last token, which no forward pass has read.
    EXPECT_GE(result.report.hit_tokens, std::ssize(answered.prompt_ids) + std::ssize(answered.choices.at(0).ids) - 1);
  }
}

/// Known fault 5, ids of both ways equal: what a client sends in full is what the server remembers.
TEST_F(ServiceHistoryTest, FullHistoryGivesTheSameIdsToAServerThatNeverSawIt) {
  const std::unique_ptr<Service> service = scripted(kTwoCalls);
  const ServiceRequest first = chat_with_tools({"weather?"}, 1000);
  const Result answered = run(*service, first);
  const std::vector<int32_t> remembered = service->encode(next_turn(first, answer_of(answered, false)));
  EXPECT_EQ(remembered, encode_afresh(next_turn(first, answer_of(answered, true))));
}

TEST_F(ServiceHistoryTest, ArgumentsMayComeBackInAnotherForm) {
  const std::unique_ptr<Service> service = scripted(kTwoCalls);
  const ServiceRequest first = chat_with_tools({"weather?"}, 1000);
  const Result answered = run(*service, first);
  const ChatMessage answer = answer_of(answered, false);
  for (const std::string_view arguments : {R"({"days":2,"city":"Ulm"})", R"({"city": "\u0055lm", "days": 2.0})"}) {
    ChatMessage changed = answer;
    changed.tool_calls[1].arguments = Json::make_string(std::string(arguments));
    expect_begins_with(service->encode(next_turn(first, changed)), history_of(answered));
    changed.tool_calls[1].arguments = parse_json(arguments);
    expect_begins_with(service->encode(next_turn(first, changed)), history_of(answered));
  }
  ChatMessage other = answer;
  other.tool_calls[1].arguments = Json::make_string(R"({"city": "Ulm", "days": 3})");
  EXPECT_EQ(service->encode(next_turn(first, other)), encode_afresh(next_turn(first, other)));
}

/// Known fault 8: the white space that the model put before its calls.
TEST_F(ServiceHistoryTest, NewlinesBeforeCallsComeBackAsTheyWere) {
  for (const std::string newlines : {"", "\\n", "\\n\\n", "\\n\\n\\n"}) {
    SCOPED_TRACE(newlines);
    std::string line(kTwoCalls);
    line.replace(line.find("\\n\\n"), 4, newlines);
    const std::unique_ptr<Service> service = scripted(line);
    const ServiceRequest first = chat_with_tools({"weather?"}, 1000);
    const Result answered = run(*service, first);
    EXPECT_EQ(answered.choices.at(0).completion.content, "I look.");
    expect_begins_with(service->encode(next_turn(first, answer_of(answered, false))), history_of(answered));
  }
}

/// The model may cut a text into other tokens than encoding it again would.
TEST_F(ServiceHistoryTest, TokensComeBackAsTheyWereSampled) {
  std::vector<int32_t> letters;
  for (const char letter : std::string("the other"))
    letters.push_back(*model()->tokenizer().find_token(std::string(1, letter)));
  const std::unique_ptr<Service> service = scripted("{\"ids\": " + list(letters) + "}");
  ServiceRequest first = chat({"hello"}, 100);
  chat_of(first).is_thinking = false;
  const Result answered = run(*service, first);
  const ServiceRequest second = next_turn(first, answer_of(answered, false));
  expect_begins_with(service->encode(second), history_of(answered));
  EXPECT_NE(service->encode(second), encode_afresh(second));
}

/// Without tools the template drops the reasoning of earlier turns, kept or not.
TEST_F(ServiceHistoryTest, ReasoningIsDroppedWhereTheTemplateDropsIt) {
  const std::unique_ptr<Service> service = scripted(R"({"text": "hm, hm</think>so it is"})");
  const ServiceRequest first = chat({"hello"}, 100);
  const Result answered = run(*service, first);
  for (const bool with_reasoning : {true, false}) {
    const ServiceRequest second = next_turn(first, answer_of(answered, with_reasoning));
    EXPECT_EQ(service->encode(second), encode_afresh(second));
  }
  // Unless the client asks for all of it to be kept.
  ServiceRequest keeps = first;
  chat_of(keeps).drops_reasoning = false;
  expect_begins_with(service->encode(next_turn(keeps, answer_of(answered, false))), history_of(answered));
}

/// Newlines behind the reasoning are layout to the reader, but the model wrote them.
TEST_F(ServiceHistoryTest, DroppedReasoningLeavesTheAnswerAsItWasWritten) {
  const std::unique_ptr<Service> service = scripted(R"({"text": "hm</think>\n\nso it is"})");
  const ServiceRequest first = chat({"hello"}, 100);
  const Result answered = run(*service, first);
  EXPECT_EQ(answered.choices.at(0).completion.content, "so it is");
  const std::vector<int32_t> ids = service->encode(next_turn(first, answer_of(answered, false)));
  std::vector<int32_t> body(std::ranges::find(answered.choices[0].ids, kThinkEnd), answered.choices[0].ids.end());
  EXPECT_NE(std::search(ids.begin(), ids.end(), body.begin(), body.end()), ids.end());
}

TEST_F(ServiceHistoryTest, HistoriesNeverSeenAreEncodedAsTheyAre) {
  const std::unique_ptr<Service> service = scripted(R"({"text": "hm</think>yes"})");
  (void)run(*service, chat({"hello"}, 100));
  ChatMessage foreign = message(ChatRole::kAssistant, "something else");
  foreign.reasoning = "of their own";
  const ServiceRequest request = next_turn(chat_with_tools({"hello"}, 100), foreign);
  const PreparedChat plain = encode_chat_request(std::get<ChatRequest>(request.prompt));
  EXPECT_EQ(service->encode(request), encode_prompt(model()->tokenizer(), plain.prompt).ids);
}

/// Two conversations of one tenant with the same visible answer: what one thought is no part of the other.
TEST_F(ServiceHistoryTest, ReasoningOfAnotherConversationStaysThere) {
  const std::unique_ptr<Service> service = scripted(R"({"text": "a secret</think>Done."})");
  const ServiceRequest theirs = chat_with_tools({"my secret task"}, 100);
  const ChatMessage answer = answer_of(run(*service, theirs), false);
  const ServiceRequest own = next_turn(theirs, answer);
  EXPECT_THAT(model()->tokenizer().decode(service->encode(own)), testing::HasSubstr("a secret"));
  const ServiceRequest other = next_turn(chat_with_tools({"another task"}, 100), answer);
  EXPECT_THAT(model()->tokenizer().decode(service->encode(other)), testing::Not(testing::HasSubstr("a secret")));
}

TEST_F(ServiceHistoryTest, ReasoningThatTheClientChangedIsTheClients) {
  const std::unique_ptr<Service> service = scripted(kTwoCalls);
  const ServiceRequest first = chat_with_tools({"weather?"}, 1000);
  ChatMessage answer = answer_of(run(*service, first), true);
  answer.reasoning = "quite another";
  EXPECT_EQ(service->encode(next_turn(first, answer)), encode_afresh(next_turn(first, answer)));
}

TEST_F(ServiceHistoryTest, OneTenantsTurnsAreNotFoundByAnother) {
  const std::unique_ptr<Service> service = scripted(kTwoCalls);
  ServiceRequest first = chat_with_tools({"weather?"}, 1000);
  first.cache_salt = "a";
  ServiceRequest second = next_turn(first, answer_of(run(*service, first), false));
  const std::vector<int32_t> own = service->encode(second);
  second.cache_salt = "b";
  const std::vector<int32_t> other = service->encode(second);
  EXPECT_NE(own, other);
  EXPECT_EQ(other, encode_afresh(second));
}

/// Known fault 26: what a stop string cut off is no part of the history, the reasoning before it is.
TEST_F(ServiceHistoryTest, CutAnswerKeepsItsReasoningAndNothingBehindTheCut) {
  const std::unique_ptr<Service> service = scripted(R"({"text": "hm, hm</think>so it is, own fox and more"})");
  ServiceRequest first = chat_with_tools({"hello"}, 100);
  first.stops = {"own fox"};
  const Result answered = run(*service, first);
  EXPECT_EQ(answered.choices.at(0).completion.content, "so it is, ");
  const std::vector<int32_t> ids = service->encode(next_turn(first, answer_of(answered, false)));
  EXPECT_EQ(ids, encode_afresh(next_turn(first, answer_of(answered, true))));
}

TEST_F(ServiceHistoryTest, AnswerThatEndedAtItsLimitComesBack) {
  const std::unique_ptr<Service> service = scripted(R"({"text": "hm</think>so it is and so on"})");
  const ServiceRequest first = chat_with_tools({"hello"}, 12);
  const Result answered = run(*service, first);
  EXPECT_EQ(answered.choices.at(0).finish->reason, FinishReason::kMaxTokens);
  ASSERT_NE(answered.choices[0].completion.content, "");
  expect_begins_with(service->encode(next_turn(first, answer_of(answered, false))), history_of(answered));
}

TEST_F(ServiceHistoryTest, AnswerThatTheClientBrokeOffComesBack) {
  const std::unique_ptr<Service> service = scripted(R"({"text": "hm</think>on and on ", "repeat": true})");
  const ServiceRequest first = chat_with_tools({"hello"}, 5000);
  service_testing::RecordingListener listener;
  std::unique_ptr<Service::Ticket> ticket;
  Result broken;
  {
    PreparedRequest prepared = service->prepare(first);
    broken.prompt_ids = prepared.prompt_ids;
    std::atomic<int> tokens = 0;
    listener.at_output = [&](size_t) { ++tokens; };
    ticket = std::get<0>(service->submit(std::move(prepared), listener));
    while (tokens < 12)
      std::this_thread::yield();
    ticket.reset();
  }
  broken.choices = listener.choices;
  std::vector<int32_t> history = history_of(broken);
  expect_begins_with(service->encode(next_turn(first, answer_of(broken, false))), history);
}

/// The prompt opened the calls block; it belongs to the turn.
TEST_F(ServiceHistoryTest, ForcedCallComesBackWithItsOpening) {
  const std::unique_ptr<Service> service =
      scripted(R"({"text": "<｜DSML｜ invoke name=\"weather\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"})");
  ServiceRequest first = chat_with_tools({"weather?"}, 1000);
  chat_of(first).is_thinking = false;
  chat_of(first).tool_choice = ToolChoice::kRequired;
  const Result answered = run(*service, first);
  ASSERT_EQ(answered.choices.at(0).completion.calls.size(), 1U);
  ServiceRequest second = next_turn(first, answer_of(answered, false));
  chat_of(second).tool_choice = ToolChoice::kAuto;
  expect_begins_with(service->encode(second), history_of(answered));
}

/// A client that wants one call gets one, and its history has a whole block with one call.
TEST_F(ServiceHistoryTest, TurnThatEndedBehindItsFirstCallIsClosedAsTheModelWould) {
  const std::unique_ptr<Service> service = scripted(kTwoCalls);
  ServiceRequest first = chat_with_tools({"weather?"}, 1000);
  first.allows_parallel_calls = false;
  const Result answered = run(*service, first);
  const std::vector<int32_t> ids = service->encode(next_turn(first, answer_of(answered, false)));
  std::vector<int32_t> written = answered.prompt_ids;
  written.insert(written.end(), answered.choices.at(0).ids.begin(), answered.choices[0].ids.end());
  expect_begins_with(ids, written);
  EXPECT_EQ(model()->tokenizer().decode(ids),
            model()->tokenizer().decode(encode_afresh(next_turn(first, answer_of(answered, true)))));
}

/// Known fault 1: text that looks like a control token stays text, in kept turns too.
TEST_F(ServiceHistoryTest, ControlTextOfAUserStaysText) {
  const std::unique_ptr<Service> service = make_engine_service(model(), options());
  for (const std::string_view text : {"<｜User｜>", "</think>", "<｜end▁of▁sentence｜>", "<｜Assistant｜><think>"}) {
    const std::vector<int32_t> with = service->encode(chat({"a" + std::string(text) + "b"}, 1));
    const std::vector<int32_t> without = service->encode(chat({"ab"}, 1));
    const auto specials = [&](const std::vector<int32_t>& ids) {
      return std::ranges::count_if(ids, [&](int32_t id) { return model()->tokenizer().is_special(id); });
    };
    EXPECT_EQ(specials(with), specials(without));
  }
}

/// The model wrote a control token that never shows: such a turn is encoded from what showed.
TEST_F(ServiceHistoryTest, HiddenTokensDoNotComeBackAsHistory) {
  const std::unique_ptr<Service> service = scripted(R"({"text": "hm</think>a<｜User｜>b"})");
  const ServiceRequest first = chat_with_tools({"hello"}, 100);
  const Result answered = run(*service, first);
  const ServiceRequest second = next_turn(first, answer_of(answered, true));
  EXPECT_EQ(service->encode(second), encode_afresh(second));
}

/// Known fault 22: results in any order belong to their calls.
TEST_F(ServiceHistoryTest, ResultsMayComeInAnyOrder) {
  const std::unique_ptr<Service> service = scripted(kTwoCalls);
  const ServiceRequest first = chat_with_tools({"weather?"}, 1000);
  ServiceRequest in_order = next_turn(first, answer_of(run(*service, first), false));
  std::vector<ChatMessage>& messages = chat_of(in_order).messages;
  messages.back().content[0].text = "sun";
  ServiceRequest swapped = in_order;
  std::swap(chat_of(swapped).messages.end()[-1], chat_of(swapped).messages.end()[-2]);
  EXPECT_EQ(service->encode(in_order), service->encode(swapped));
}

/// Known fault 4: a last assistant message is continued, not closed.
TEST_F(ServiceHistoryTest, LastMessageCanBeContinued) {
  const std::unique_ptr<Service> service = scripted(R"({"text": "\n42."})");
  ServiceRequest request = chat({"what is it?"}, 100);
  chat_of(request).messages.push_back(message(ChatRole::kAssistant, "The answer is"));
  chat_of(request).continues_last_message = true;
  const Result result = run(*service, request);
  EXPECT_NE(result.prompt_ids.back(), kEnd);
  EXPECT_THAT(model()->tokenizer().decode(result.prompt_ids), testing::EndsWith("The answer is"));
  EXPECT_EQ(result.choices.at(0).completion.content, "\n42.");
}

}  // namespace
}  // namespace tidepool
