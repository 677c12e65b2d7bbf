#include "session/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/temp_folder.h"
#include "formats/safetensors.h"

namespace tidepool {
namespace {

/// On the tiny golden checkpoint. Its answers mean nothing, but they are the same each time.
class ConversationTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    LoadOptions options;
    options.folder = std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "ckpt";
    options.threads = 1;
    shared_model = LoadedModel::load(options);
  }
  static void TearDownTestSuite() { shared_model.reset(); }

  static const LoadedModel& model() { return *shared_model; }

  /// A cache with room for everything.
  static KvCacheOptions roomy() {
    KvCacheOptions options;
    options.ram_bytes = size_t{64} << 20;
    options.snapshot_ram_bytes = size_t{64} << 20;
    return options;
  }
  /// A turn that nothing came before.
  static TurnResult run_fresh(const TurnRequest& turn) {
    KvCache cache(model().model().kv_layout(), roomy());
    return Conversation(model(), cache).run(turn);
  }

  static std::vector<int32_t> golden_ids(const std::string& name) {
    const SafetensorsFile file(std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "cases/greedy.safetensors");
    const TensorView view = file.tensor(name);
    std::vector<int32_t> ids(view.bytes / sizeof(int32_t));
    std::memcpy(ids.data(), view.data, view.bytes);
    return ids;
  }

  static TurnRequest raw_turn(std::vector<int32_t> prompt, int64_t max_tokens) {
    TurnRequest turn;
    turn.prompt = std::move(prompt);
    turn.output.kind = OutputFormat::Kind::kRaw;
    turn.generation.sampling.temperature = 0;
    turn.generation.max_tokens = max_tokens;
    turn.generation.replay = Replay::kFull;
    turn.generation.stop_ids = model().stop_ids();
    return turn;
  }

  static std::vector<int32_t> ids_of(const TurnResult& result) {
    std::vector<int32_t> ids;
    ids.reserve(result.tokens.size());
    for (const SampledToken& token : result.tokens)
      ids.push_back(token.id);
    return ids;
  }

  static ChatRequest chat(bool is_thinking, const std::vector<std::string>& user_texts) {
    ChatRequest request;
    request.is_thinking = is_thinking;
    for (const std::string& text : user_texts) {
      ChatMessage message;
      message.content.emplace_back();
      message.content.back().text = text;
      request.messages.push_back(message);
    }
    return request;
  }

  static ChatMessage assistant(const std::string& text, const std::string& reasoning) {
    ChatMessage message;
    message.role = ChatRole::kAssistant;
    message.content.emplace_back();
    message.content.back().text = text;
    message.reasoning = reasoning;
    return message;
  }

 private:
  inline static std::unique_ptr<LoadedModel> shared_model;

 protected:
  KvCache cache_{shared_model->model().kv_layout(), roomy()};
};

TEST_F(ConversationTest, RunsTheGoldenGreedyAnswer) {
  Conversation conversation(model(), cache_);
  const TurnResult result = conversation.run(raw_turn(golden_ids("prompt_ids"), 20));
  EXPECT_EQ(ids_of(result), golden_ids("output_ids"));
  EXPECT_EQ(result.finish, FinishReason::kMaxTokens);
  EXPECT_EQ(result.cache.prompt_tokens, std::ssize(golden_ids("prompt_ids")));
  EXPECT_EQ(result.cache.hit_tokens, 0);
}

/// Token 371 is a quotation mark and 313 an umlaut: the stop string begins in one and ends in the other.
TEST_F(ConversationTest, StopStringAcrossTwoTokensIsCutOut) {
  const std::string whole = run_fresh(raw_turn(golden_ids("prompt_ids"), 20)).completion.content;
  const std::string stop = "“Ü";
  const size_t at = whole.find(stop);
  ASSERT_NE(at, std::string::npos);

  TurnRequest turn = raw_turn(golden_ids("prompt_ids"), 20);
  turn.output.stops = {"nowhere", stop};
  std::string streamed;
  TurnListener listener;
  listener.on_event = [&](const CompletionEvent& event) { streamed += event.text; };
  Conversation conversation(model(), cache_);
  const TurnResult result = conversation.run(turn, listener);
  EXPECT_EQ(result.completion.content, whole.substr(0, at));
  EXPECT_EQ(streamed, result.completion.content);
  EXPECT_EQ(result.finish, FinishReason::kStopText);
  EXPECT_EQ(result.stop_index, 1U);
  EXPECT_EQ(ids_of(result), (std::vector<int32_t>{341, 184, 371, 313}));
}

/// Reading only what is new gives what reading everything gives.
TEST_F(ConversationTest, ContinuedPromptIsNotReadAgain) {
  Conversation conversation(model(), cache_);
  const TurnResult first = conversation.run(raw_turn(golden_ids("prompt_ids"), 20));
  std::vector<int32_t> prompt = golden_ids("prompt_ids");
  for (const int32_t id : ids_of(first))
    prompt.push_back(id);
  prompt.insert(prompt.end(), {42, 43, 44});
  const TurnResult second = conversation.run(raw_turn(prompt, 10));
  EXPECT_EQ(second.cache.hit_tokens, std::ssize(prompt) - 4);  // all but the last token of the answer and the new ones

  EXPECT_EQ(ids_of(second), ids_of(run_fresh(raw_turn(prompt, 10))));
}

TEST_F(ConversationTest, SamePromptAgainReadsItsLastToken) {
  Conversation conversation(model(), cache_);
  const TurnResult first = conversation.run(raw_turn(golden_ids("prompt_ids"), 20));
  const TurnResult second = conversation.run(raw_turn(golden_ids("prompt_ids"), 20));
  EXPECT_EQ(second.cache.hit_tokens, std::ssize(golden_ids("prompt_ids")) - 1);
  EXPECT_EQ(ids_of(second), ids_of(first));
}

TEST_F(ConversationTest, OtherPromptBeginsAnew) {
  Conversation conversation(model(), cache_);
  (void)conversation.run(raw_turn(golden_ids("prompt_ids"), 20));
  EXPECT_EQ(conversation.run(raw_turn({5, 6, 7}, 2)).cache.hit_tokens, 0);
}

/// Reasoning is dropped from earlier turns, so the next prompt parts from the last one at its <think>: the state from
/// before the answer serves up to there.
TEST_F(ConversationTest, DroppedReasoningCostsOnlyTheAnswer) {
  Conversation conversation(model(), cache_);
  std::vector<std::string> missing;
  ChatRequest request = chat(true, {"Hello there"});
  TurnRequest turn = make_chat_turn(model(), request, missing);
  turn.generation.max_tokens = 20;
  (void)conversation.run(turn);
  const int64_t first_prompt = std::ssize(turn.prompt);

  request.messages.push_back(assistant("Good day", "They greet"));
  request.messages.push_back(chat(true, {"And now?"}).messages.front());
  turn = make_chat_turn(model(), request, missing);
  turn.generation.max_tokens = 2;
  EXPECT_EQ(conversation.run(turn).cache.hit_tokens, first_prompt - 1);
}

TEST_F(ConversationTest, ChatBeginsInReasoningOrInTheAnswer) {
  std::vector<std::string> missing;
  EXPECT_EQ(make_chat_turn(model(), chat(true, {"Hi"}), missing).output.start, OutputStart::kReasoning);
  EXPECT_EQ(make_chat_turn(model(), chat(false, {"Hi"}), missing).output.start, OutputStart::kContent);
}

/// The golden tokenizer has no <｜System｜>, which the effort line needs.
TEST_F(ConversationTest, MissingControlTokensAreNamedAndWrittenAsText) {
  std::vector<std::string> missing;
  const TurnRequest turn = make_chat_turn(model(), chat(true, {"Hi"}), missing);
  EXPECT_THAT(missing, testing::ElementsAre("<｜System｜>"));
  EXPECT_THAT(model().tokenizer().decode(turn.prompt), testing::HasSubstr("<｜System｜>Reasoning Effort: 75"));
  missing.clear();
  (void)make_chat_turn(model(), chat(false, {"Hi"}), missing);
  EXPECT_TRUE(missing.empty());
}

/// What a user writes is text, even if it looks like a control token: <think> is one token only where the template
/// puts it.
TEST_F(ConversationTest, UserTextNeverBecomesAControlToken) {
  std::vector<std::string> missing;
  const std::vector<int32_t> prompt = make_chat_turn(model(), chat(false, {"a<｜User｜>b</think>"}), missing).prompt;
  const int32_t user = *model().tokenizer().find_added_token("<｜User｜>");
  const int32_t think_end = *model().tokenizer().find_added_token("</think>");
  EXPECT_EQ(std::ranges::count(prompt, user), 1);
  EXPECT_EQ(std::ranges::count(prompt, think_end), 1);
}

TEST_F(ConversationTest, CancelledPromptCanBeContinued) {
  std::stop_source source;
  TurnRequest turn = raw_turn(golden_ids("prompt_ids"), 20);
  turn.generation.chunk = 4;
  TurnListener listener;
  listener.on_prompt = [&](size_t done, size_t) {
    if (done == 4) source.request_stop();
  };
  Conversation conversation(model(), cache_);
  const TurnResult cancelled = conversation.run(turn, listener, source.get_token());
  EXPECT_EQ(cancelled.finish, FinishReason::kCancelled);
  EXPECT_TRUE(cancelled.tokens.empty());
  const TurnResult result = conversation.run(turn);
  EXPECT_EQ(result.cache.hit_tokens, 4);
  EXPECT_EQ(ids_of(result), golden_ids("output_ids"));
}

TEST_F(ConversationTest, StopRequestEndsTheAnswer) {
  std::stop_source source;
  TurnListener listener;
  listener.on_token = [&](const SampledToken&) { source.request_stop(); };
  Conversation conversation(model(), cache_);
  const TurnResult result = conversation.run(raw_turn(golden_ids("prompt_ids"), 20), listener, source.get_token());
  EXPECT_EQ(result.finish, FinishReason::kCancelled);
  EXPECT_EQ(result.tokens.size(), 1U);
}

TEST_F(ConversationTest, RefusedPromptLeavesTheConversationUsable) {
  Conversation conversation(model(), cache_);
  (void)conversation.run(raw_turn(golden_ids("prompt_ids"), 20));
  EXPECT_THROW((void)conversation.run(raw_turn(std::vector<int32_t>(2000, 5), 1)), Error);
  EXPECT_THROW((void)conversation.run(raw_turn({}, 1)), Error);
  EXPECT_EQ(ids_of(conversation.run(raw_turn(golden_ids("prompt_ids"), 20))), golden_ids("output_ids"));
}

TEST_F(ConversationTest, LogprobsComeWithTheTokens) {
  TurnRequest turn = raw_turn(golden_ids("prompt_ids"), 3);
  turn.generation.sampling.top_logprobs = 2;
  Conversation conversation(model(), cache_);
  const TurnResult result = conversation.run(turn);
  for (const SampledToken& token : result.tokens) {
    ASSERT_TRUE(token.logprobs);
    // Greedy takes the most likely one.
    EXPECT_EQ(token.logprobs->top.front().id, token.id);
    EXPECT_EQ(token.logprobs->rank, 0);
  }
}

/// Without Engram nothing but text needs a tokenizer.
TEST(LoadedModel, TextOnlyCheckpointRunsOnIdsWithoutATokenizer) {
  const std::filesystem::path source = std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "ckpt_textonly";
  const TempFolder folder;
  for (const char* name : {"config.json", "model.safetensors"})
    std::filesystem::create_symlink(source / name, folder / name);
  LoadOptions options;
  options.folder = folder.path();
  options.threads = 1;
  const std::unique_ptr<LoadedModel> model = LoadedModel::load(options);
  EXPECT_FALSE(model->has_tokenizer());
  EXPECT_THROW((void)model->tokenizer(), Error);
  TurnRequest turn;
  turn.prompt = {1, 2, 3};
  turn.output.kind = OutputFormat::Kind::kIds;
  turn.generation.max_tokens = 2;
  KvCacheOptions room;
  room.ram_bytes = size_t{64} << 20;
  KvCache cache(model->model().kv_layout(), room);
  Conversation conversation(*model, cache);
  const TurnResult result = conversation.run(turn);
  EXPECT_EQ(result.tokens.size(), 2U);
  EXPECT_EQ(result.completion.content, "");
}

TEST(LoadedModel, ProgressReachesItsEnd) {
  LoadOptions options;
  options.folder = std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "ckpt";
  options.threads = 1;
  size_t last_done = 0;
  size_t last_total = 1;
  (void)LoadedModel::load(options, [&](std::string_view, size_t done, size_t total) {
    EXPECT_GE(done, last_done);
    last_done = done;
    last_total = total;
  });
  EXPECT_EQ(last_done, last_total);
}

TEST(LoadedModel, UnknownKernelsAreRefused) {
  LoadOptions options;
  options.folder = std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "ckpt";
  options.isa = "abacus";
  EXPECT_THROW((void)LoadedModel::load(options), Error);
}

}  // namespace
}  // namespace tidepool
