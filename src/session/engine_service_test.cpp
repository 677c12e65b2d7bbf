#include "session/engine_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <thread>

#include "session/service_test_base.h"

namespace tidepool {
namespace {

using service_testing::RecordingListener;

using service_testing::kTwoCalls;

class EngineServiceTest : public service_testing::ServiceTest {};

TEST_F(EngineServiceTest, FollowsTheGoldenGreedyAnswer) {
  EngineServiceOptions how = options();
  how.scheduler.replay = Replay::kFull;
  const std::unique_ptr<Service> service = make_engine_service(model(), how);
  ServiceRequest request = raw("", 20);
  request.prompt = RawPrompt{golden_ids("prompt_ids")};
  const Result result = run(*service, request);
  EXPECT_EQ(result.choices.at(0).ids, golden_ids("output_ids"));
  EXPECT_EQ(result.choices[0].finish->reason, FinishReason::kMaxTokens);
  EXPECT_EQ(result.choices[0].finish->usage.completion_tokens, 20);
  EXPECT_EQ(result.report.prompt_tokens, static_cast<int64_t>(result.prompt_ids.size()));
}

TEST_F(EngineServiceTest, AnswersSeveralChatsAtOnceAsAlone) {
  const auto request = [](int index) { return chat({"question " + std::to_string(index)}, 8 + index); };
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < 5; ++i) {
    const std::unique_ptr<Service> service = make_engine_service(model(), options());
    alone.push_back(run(*service, request(i)).choices.at(0).ids);
  }
  const std::unique_ptr<Service> service = make_engine_service(model(), options());
  std::deque<RecordingListener> listeners(5);
  std::vector<std::unique_ptr<Service::Ticket>> tickets;
  tickets.reserve(5);
  for (int i = 0; i < 5; ++i)
    tickets.push_back(submit(*service, request(i), listeners[static_cast<size_t>(i)]));
  for (size_t i = 0; i < 5; ++i) {
    listeners[i].wait();
    EXPECT_EQ(listeners[i].choices.at(0).ids, alone[i]);
  }
}

TEST_F(EngineServiceTest, RawTextBeginsTheSentenceOnce) {
  const std::unique_ptr<Service> service = make_engine_service(model(), options());
  ServiceRequest request = raw("the", 1);
  EXPECT_EQ(service->encode(request).front(), 0);
  request.prompt = RawPrompt{"<｜begin▁of▁sentence｜>the"};
  EXPECT_EQ(service->encode(request), service->encode(raw("the", 1)));
  request.prompt = RawPrompt{"the", false};
  EXPECT_EQ(service->encode(request), std::vector<int32_t>{265});
  // Literal control tokens count in a raw prompt.
  request.prompt = RawPrompt{"<｜User｜>the", false};
  EXPECT_EQ(service->encode(request), (std::vector<int32_t>{501, 265}));
}

TEST_F(EngineServiceTest, ContextIsCheckedBeforeAnythingIsQueued) {
  EngineServiceOptions how = options();
  how.scheduler.max_model_len = 100;
  const std::unique_ptr<Service> service = make_engine_service(model(), how);
  const ServiceRequest request = raw(std::string(400, '!'), 5);
  EXPECT_GE(service->encode(request).size(), 100U);
  try {
    (void)service->prepare(request);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(error.what(), testing::HasSubstr(std::to_string(service->encode(request).size()) + " tokens"));
    EXPECT_THAT(error.what(), testing::HasSubstr("context 100"));
  }
  EXPECT_EQ(service->max_model_len(), 100);
}

TEST_F(EngineServiceTest, BadRequestsAreRefusedByName) {
  const std::unique_ptr<Service> service = make_engine_service(model(), options());
  const auto refusal = [&](const std::function<void(ServiceRequest&)>& spoil) -> std::string {
    ServiceRequest request = chat({"hello"}, 5);
    spoil(request);
    try {
      (void)service->prepare(request);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "taken";
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal([](ServiceRequest& r) { std::get<ChatRequest>(r.prompt).messages.clear(); }),
              testing::StartsWith("messages:"));
  EXPECT_THAT(refusal([](ServiceRequest& r) { r.sampling.temperature = 3; }), HasSubstr("temperature"));
  EXPECT_THAT(refusal([](ServiceRequest& r) { r.stops = {""}; }), HasSubstr("stop"));
  EXPECT_THAT(refusal([](ServiceRequest& r) { r.stop_ids = {512}; }), HasSubstr("stop id"));
  EXPECT_THAT(refusal([](ServiceRequest& r) { r.max_tokens = 0; }), HasSubstr("max_tokens"));
  EXPECT_THAT(refusal([](ServiceRequest& r) { r.min_tokens = 6; }), HasSubstr("min_tokens"));
  EXPECT_THAT(refusal([](ServiceRequest& r) { r.choice_count = 0; }), HasSubstr("n:"));
  EXPECT_THAT(refusal([](ServiceRequest& r) { r.choice_count = 99; }), HasSubstr("n:"));
  EXPECT_THAT(refusal([](ServiceRequest& r) { r.prompt = RawPrompt{std::vector<int32_t>{512}}; }),
              testing::StartsWith("prompt:"));
  EXPECT_THAT(refusal([](ServiceRequest& r) { r.prompt = RawPrompt{std::vector<int32_t>{}}; }),
              testing::StartsWith("prompt:"));
}

TEST_F(EngineServiceTest, ContextThatMemoryCannotHoldIsNotPromised) {
  const size_t block_bytes = model()->model().kv_layout()->block_bytes;
  EngineServiceOptions how = options();
  how.kv->ram_bytes = 8 * block_bytes;
  EXPECT_EQ(make_engine_service(model(), how)->max_model_len(), 8 * kBlockTokens);
  how.scheduler.max_model_len = 8 * kBlockTokens + 1;
  try {
    (void)make_engine_service(model(), how);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("--kv-ram"));
  }
  how.scheduler.max_model_len = 0;
  how.kv->ram_bytes = block_bytes - 1;
  try {
    (void)make_engine_service(model(), how);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("--kv-ram"));
  }
  how.kv->ram_bytes = 8 * block_bytes;
  const std::unique_ptr<Service> service = make_engine_service(model(), how);
  ServiceRequest request = raw("the", 500);
  request.choice_count = 3;
  EXPECT_THROW((void)service->prepare(request), Error);
}

/// Known fault 35: titles and other side questions, none with a limit of its own, while the main session rests. What
/// they may write at most is most of the memory, what they do write is little.
TEST_F(EngineServiceTest, TitlePromptsDoNotCostTheMainSession) {
  EngineServiceOptions how = options();
  how.kv->ram_bytes = 160 * model()->model().kv_layout()->block_bytes;
  const std::unique_ptr<Service> service = make_engine_service(model(), how);
  const auto title = [](int number) {
    ServiceRequest request = raw("title " + std::to_string(number), 1);
    request.max_tokens.reset();
    request.stop_ids.resize(512);  // a short answer, whatever it says
    for (int32_t id = 0; id < 512; ++id)
      request.stop_ids[static_cast<size_t>(id)] = id;
    return request;
  };
  ServiceRequest main = raw("", 4);
  main.prompt = RawPrompt{std::vector<int32_t>(6000, 17)};
  const Result first = run(*service, main);
  for (int round = 0; round < 4; ++round) {
    std::deque<RecordingListener> listeners(4);
    std::vector<std::unique_ptr<Service::Ticket>> tickets;
    tickets.reserve(listeners.size());
    for (RecordingListener& listener : listeners)
      tickets.push_back(submit(*service, title(round), listener));
    for (RecordingListener& listener : listeners) {
      listener.wait();
      EXPECT_FALSE(listener.error) << listener.error->what();
    }
  }
  const Result again = run(*service, main);
  EXPECT_EQ(again.report.hit_tokens, 5999);
  EXPECT_EQ(again.choices.at(0).ids, first.choices.at(0).ids);
}

/// A long output is published as it comes, and takes room only then.
TEST_F(EngineServiceTest, LongOutputsTakeTheirRoomAsTheyGrow) {
  EngineServiceOptions how = options();
  const size_t block_bytes = model()->model().kv_layout()->block_bytes;
  how.kv->ram_bytes = 130 * block_bytes;
  how.kv->snapshot_ram_bytes = 0;
  const std::unique_ptr<Service> service = make_engine_service(model(), how);
  ServiceRequest request = raw("the", 4300);
  request.ignores_eos = true;
  RecordingListener listener;
  size_t pages_max = 0;
  listener.at_output = [&](size_t) {
    if (listener.choices[0].ids.size() % 100 == 0)
      pages_max = std::max<size_t>(pages_max, service->status().kv_page_bytes / block_bytes);
  };
  const auto ticket = submit(*service, request, listener);
  listener.wait();
  EXPECT_EQ(listener.choices.at(0).ids.size(), 4300U);
  EXPECT_GE(pages_max, 32U);
  EXPECT_EQ(service->status().kv_reserved_bytes, 0U);
}

TEST_F(EngineServiceTest, ChoicesAreDrawnWithTheirOwnSeeds) {
  const std::unique_ptr<Service> service = make_engine_service(model(), options());
  ServiceRequest request = raw("the quick", 6);
  request.sampling.temperature = 1;
  request.sampling.seed = 40;
  request.choice_count = 3;
  const Result together = run(*service, request);
  ASSERT_EQ(together.choices.size(), 3U);
  request.choice_count = 1;
  for (size_t choice = 0; choice < 3; ++choice) {
    request.sampling.seed = 40 + choice;
    const std::unique_ptr<Service> fresh = make_engine_service(model(), options());
    EXPECT_EQ(together.choices[choice].ids, run(*fresh, request).choices.at(0).ids);
  }
}

TEST_F(EngineServiceTest, LogprobsComeWhenAskedFor) {
  const std::unique_ptr<Service> service = make_engine_service(model(), options());
  ServiceRequest request = raw("the", 3);
  request.sampling.top_logprobs = 2;
  EXPECT_FALSE(run(*service, request).choices.at(0).tokens.at(0).logprobs);
  request.wants_logprobs = true;
  EXPECT_EQ(run(*service, request).choices.at(0).tokens.at(0).logprobs->top.size(), 2U);
  request.sampling.top_logprobs.reset();
  EXPECT_EQ(run(*service, request).choices.at(0).tokens.at(0).logprobs->top.size(), 0U);
}

TEST_F(EngineServiceTest, EndOfTheTurnCanBeIgnoredOrPutOff) {
  const std::unique_ptr<Service> service = make_engine_service(model(), options());
  ServiceRequest request = raw("the", 6);
  request.sampling.logit_bias = {{1, 100}};
  const RecordingListener::ChoiceLog at_once = run(*service, request).choices.at(0);
  EXPECT_EQ(at_once.ids, std::vector<int32_t>{1});
  EXPECT_EQ(at_once.finish->reason, FinishReason::kStopToken);
  EXPECT_EQ(at_once.finish->usage.completion_tokens, 1);
  EXPECT_FALSE(at_once.finish->stop_id);
  request.min_tokens = 3;
  EXPECT_EQ(run(*service, request).choices.at(0).ids.size(), 4U);
  request.ignores_eos = true;
  request.min_tokens = 0;
  const RecordingListener::ChoiceLog ignored = run(*service, request).choices.at(0);
  EXPECT_EQ(ignored.ids, std::vector<int32_t>(6, 1));
  EXPECT_EQ(ignored.completion.content, "");
}

TEST_F(EngineServiceTest, StopIdsOfTheClientAreNamed) {
  const std::unique_ptr<Service> service = scripted(R"({"ids": [265, 7, 8]})");
  ServiceRequest request = raw("x", 10);
  request.stop_ids = {9, 7};
  const RecordingListener::ChoiceLog log = run(*service, request).choices.at(0);
  EXPECT_EQ(log.ids, (std::vector<int32_t>{265, 7}));
  EXPECT_EQ(log.finish->stop_id, 7);
  EXPECT_EQ(log.completion.content, "the");
}

TEST_F(EngineServiceTest, SpecialTokensShowOnlyWhereTheyAreAskedFor) {
  const std::unique_ptr<Service> service = scripted(R"({"text": "a<｜User｜>b"})");
  EXPECT_EQ(run(*service, raw("x", 10)).choices.at(0).completion.content, "ab");
  ServiceRequest request = raw("x", 10);
  request.shows_special_tokens = true;
  EXPECT_EQ(run(*service, request).choices.at(0).completion.content, "a<｜User｜>b");
  request.includes_stop_text = true;
  EXPECT_EQ(run(*service, request).choices.at(0).completion.content, "a<｜User｜>b<｜end▁of▁sentence｜>");
}

/// Known fault 28.
TEST_F(EngineServiceTest, NoSpecialTokenShowsInAnAnswer) {
  for (int32_t id = 0; id < 512; ++id) {
    if (!model()->tokenizer().is_special(id)) continue;
    SCOPED_TRACE(model()->tokenizer().token_bytes(id));
    const std::unique_ptr<Service> service = scripted("{\"ids\": [265, " + std::to_string(id) + ", 265]}");
    for (const bool is_thinking : {false, true}) {
      ServiceRequest request = chat({"x"}, 10);
      std::get<ChatRequest>(request.prompt).is_thinking = is_thinking;
      request.shows_special_tokens = true;
      const Completion got = run(*service, request).choices.at(0).completion;
      EXPECT_THAT(got.reasoning + got.content, testing::Not(testing::HasSubstr("｜")));
      EXPECT_THAT(got.reasoning + got.content, testing::StartsWith("the"));
    }
  }
}

/// Known fault 19: thinking that was cut is reasoning, and without thinking all is content.
TEST_F(EngineServiceTest, ReasoningIsToldFromContentWhereverItIsCut) {
  const std::unique_ptr<Service> service = scripted(R"({"text": "because</think>so it is"})");
  const Result whole = run(*service, chat({"x"}, 100));
  const RecordingListener::ChoiceLog& all = whole.choices.at(0);
  EXPECT_EQ(all.completion.reasoning, "because");
  EXPECT_EQ(all.completion.content, "so it is");
  const auto marker = std::ranges::find(all.ids, 504) - all.ids.begin();
  EXPECT_EQ(all.finish->usage.reasoning_tokens, marker);
  for (int64_t limit = 1; limit < static_cast<int64_t>(all.ids.size()); ++limit) {
    const RecordingListener::ChoiceLog cut = run(*service, chat({"x"}, limit)).choices.at(0);
    EXPECT_EQ(cut.finish->reason, FinishReason::kMaxTokens);
    EXPECT_EQ(cut.finish->usage.reasoning_tokens, std::min<int64_t>(limit, marker));
    if (limit <= marker) {
      EXPECT_EQ(cut.completion.content, "");
    }
    EXPECT_TRUE(std::string("because").starts_with(cut.completion.reasoning));
  }
  ServiceRequest off = chat({"x"}, 100);
  std::get<ChatRequest>(off.prompt).is_thinking = false;
  EXPECT_EQ(run(*service, off).choices.at(0).completion.reasoning, "");
}

/// Known fault 23: whichever tokens a stop string comes in, nothing of it is sent, and what only looked like its
/// beginning is.
TEST_F(EngineServiceTest, StopStringsAreCutOutInAnyTokens) {
  const std::string text = "the quick red fox, its own fox";
  for (const size_t first_piece : {size_t{0}, size_t{24}, size_t{26}, size_t{28}}) {
    // Encoding two halves apart gives other tokens around the border.
    std::vector<int32_t> ids = model()->tokenizer().encode_plain(text.substr(0, first_piece));
    const std::vector<int32_t> rest = model()->tokenizer().encode_plain(text.substr(first_piece));
    ids.insert(ids.end(), rest.begin(), rest.end());
    const std::unique_ptr<Service> service = scripted("{\"ids\": " + list(ids) + "}");
    ServiceRequest request = raw("x", 100);
    request.stops = {"nowhere", "own fox"};
    const RecordingListener::ChoiceLog log = run(*service, request).choices.at(0);
    EXPECT_EQ(log.completion.content, "the quick red fox, its ");
    EXPECT_EQ(log.finish->reason, FinishReason::kStopText);
    EXPECT_EQ(log.finish->stop_index, 1U);
    request.includes_stop_text = true;
    EXPECT_EQ(run(*service, request).choices.at(0).completion.content, text);
    ServiceRequest in_chat = chat({"x"}, 100);
    in_chat.stops = request.stops;
    std::get<ChatRequest>(in_chat.prompt).is_thinking = false;
    EXPECT_EQ(run(*service, in_chat).choices.at(0).completion.content, "the quick red fox, its ");
    in_chat.includes_stop_text = true;
    EXPECT_EQ(run(*service, in_chat).choices.at(0).completion.content, text);
  }
}

/// Known faults 17 and 24: what was held back comes at the end, through the parser.
TEST_F(EngineServiceTest, HeldTextComesAtTheEnd) {
  for (const std::string tail : {"2 <", "2 </", "2 </thi", "2 <｜DSML", "a stop: own fo"}) {
    SCOPED_TRACE(tail);
    const std::unique_ptr<Service> service = scripted("{\"text\": \"" + tail + "\"}");
    ServiceRequest request = chat({"x"}, 100);
    std::get<ChatRequest>(request.prompt).is_thinking = false;
    request.stops = {"own fox"};
    EXPECT_EQ(run(*service, request).choices.at(0).completion.content, tail);
  }
}

TEST_F(EngineServiceTest, CallsAreReadAndParallelOnesCanBeLeftOut) {
  const std::unique_ptr<Service> service = scripted(kTwoCalls);
  ServiceRequest request = chat_with_tools({"weather?"}, 1000);
  const RecordingListener::ChoiceLog both = run(*service, request).choices.at(0);
  ASSERT_EQ(both.completion.calls.size(), 2U);
  EXPECT_EQ(both.completion.calls[1].arguments, R"({"city": "Ulm", "days": 2})");
  EXPECT_TRUE(both.finish->has_calls);
  EXPECT_EQ(both.completion.content, "I look.");
  request.allows_parallel_calls = false;
  const RecordingListener::ChoiceLog one = run(*service, request).choices.at(0);
  ASSERT_EQ(one.completion.calls.size(), 1U);
  EXPECT_TRUE(one.completion.calls[0].is_complete);
  EXPECT_EQ(one.completion.calls[0].arguments, R"({"city": "Köln"})");
  EXPECT_TRUE(one.finish->has_calls);
  EXPECT_EQ(one.finish->reason, FinishReason::kStopText);
  EXPECT_LT(one.ids.size(), both.ids.size());
}

TEST_F(EngineServiceTest, CallThatWasCutShortIsNoCall) {
  const std::unique_ptr<Service> service = scripted(kTwoCalls);
  const Result whole = run(*service, chat_with_tools({"weather?"}, 1000));
  const auto length = static_cast<int64_t>(whole.choices.at(0).ids.size());
  for (int64_t limit = 1; limit < length; limit += 23) {
    const RecordingListener::ChoiceLog cut = run(*service, chat_with_tools({"weather?"}, limit)).choices.at(0);
    EXPECT_EQ(cut.finish->reason, FinishReason::kMaxTokens);
    const auto complete = std::ranges::count(cut.completion.calls, true, &Completion::Call::is_complete);
    EXPECT_EQ(cut.finish->has_calls, complete > 0);
    EXPECT_THAT(cut.completion.content, testing::Not(testing::HasSubstr("DSML")));
  }
}

/// A random model writes nothing but what the schema allows, for every choice, behind its reasoning or without any.
TEST_F(EngineServiceTest, OutputIsHeldToItsSchema) {
  const std::unique_ptr<Service> service = make_engine_service(model(), options());
  ServiceRequest request = chat({"x"}, 200);
  request.sampling.temperature = 1;
  request.choice_count = 3;
  ChatRequest& asked = std::get<ChatRequest>(request.prompt);
  asked.is_thinking = false;
  asked.response_format = parse_json(
      R"({"type": "json_schema", "json_schema": {"name": "s", "strict": true, "schema": {"type": "object",
          "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}}, "required": ["a", "b"],
          "additionalProperties": false}}})");
  const Result result = run(*service, request);
  ASSERT_EQ(result.choices.size(), 3U);
  for (const RecordingListener::ChoiceLog& choice : result.choices) {
    EXPECT_EQ(choice.finish->reason, FinishReason::kStopToken);
    const Json got = parse_json(choice.completion.content);
    ASSERT_TRUE(got.find("a") != nullptr && got.find("b") != nullptr) << choice.completion.content;
    EXPECT_TRUE(got.find("b")->is_bool());
  }
  request.ignores_eos = true;
  EXPECT_THROW((void)service->prepare(request), Error);
}

/// Known fault 20: tools that may not be called are not shown.
TEST_F(EngineServiceTest, ToolChoiceNoneHidesTheTools) {
  const std::unique_ptr<Service> service = make_engine_service(model(), options());
  ServiceRequest none = chat_with_tools({"hello"}, 5);
  std::get<ChatRequest>(none.prompt).tool_choice = ToolChoice::kNone;
  EXPECT_EQ(service->encode(none), service->encode(chat({"hello"}, 5)));
}

/// Known fault 76 at this level: a client that left hears no more, wherever its request was.
TEST_F(EngineServiceTest, NothingIsHeardOnceTheTicketIsGone) {
  EngineServiceOptions how = options();
  how.scheduler.max_num_batched_tokens = 40;
  const std::unique_ptr<Service> service = make_engine_service(model(), how);
  for (int round = 0; round < 12; ++round) {
    RecordingListener listener;
    std::atomic<bool> is_gone = false;
    std::atomic<int> late = 0;
    std::atomic<int> heard = 0;
    const auto hear = [&] {
      ++heard;
      if (is_gone) ++late;
    };
    listener.at_start = hear;
    listener.at_prompt = hear;
    listener.at_output = [&](size_t) { hear(); };
    auto ticket = submit(*service, raw(std::string(120, '?'), 2000), listener);
    while (heard < round)
      std::this_thread::yield();
    ticket.reset();
    is_gone = true;
    EXPECT_FALSE(listener.error);
    EXPECT_EQ(run(*service, raw("the", 2)).choices.at(0).ids.size(), 2U);
    EXPECT_EQ(late, 0);
  }
  EXPECT_EQ(service->status().waiting, 0);
}

TEST_F(EngineServiceTest, BusyIsSaidBeforeTheFirstByte) {
  EngineServiceOptions how = options();
  how.scheduler.max_num_seqs = 1;
  how.scheduler.queue_limit = 1;
  const std::unique_ptr<Service> service = make_engine_service(model(), how);
  RecordingListener running;
  RecordingListener queued;
  RecordingListener refused;
  std::unique_ptr<Service::Ticket> queued_ticket;
  std::vector<Busy> answers;
  running.at_prompt = [&] {
    queued_ticket = submit(*service, raw("the", 1), queued);
    const auto ask = [&] { return service->submit(service->prepare(raw("the", 1)), refused); };
    answers.push_back(std::get<Busy>(ask()));
    service->drain();
    answers.push_back(std::get<Busy>(ask()));
  };
  const auto ticket = submit(*service, raw("the", 1), running);
  running.wait();
  queued.wait();
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[0].reason, Busy::Reason::kQueueFull);
  EXPECT_EQ(answers[1].reason, Busy::Reason::kDraining);
  EXPECT_GE(answers[0].retry_after_s, 1);
  EXPECT_FALSE(refused.report);
  EXPECT_TRUE(service->status().is_draining);
}

TEST_F(EngineServiceTest, ScriptIsNamedAndItsLackOfALineIsAnError) {
  EXPECT_EQ(make_engine_service(model(), options())->script_name(), "");
  const std::unique_ptr<Service> service = scripted(R"({"text": "yes", "match": "tide"})");
  EXPECT_THAT(service->script_name(), testing::HasSubstr("script.jsonl"));
  ServiceRequest request = chat({"is there a tide?"}, 10);
  std::get<ChatRequest>(request.prompt).is_thinking = false;
  EXPECT_EQ(run(*service, request).choices.at(0).completion.content, "yes");
  RecordingListener listener;
  EXPECT_THROW((void)service->submit(service->prepare(raw("else", 1)), listener), Error);
}

}  // namespace
}  // namespace tidepool
