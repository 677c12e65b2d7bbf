#include "session/engine_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>

#include "session/conversation.h"
#include "session/prompt_ids.h"
#include "session/service_test_support.h"

namespace tidepool {
namespace {

using service_testing::RecordingListener;

class EngineServiceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_checkpoint = std::make_unique<service_testing::RoomyCheckpoint>();
    shared_model = service_testing::load_roomy_model(*shared_checkpoint);
  }
  static void TearDownTestSuite() {
    shared_model.reset();
    shared_checkpoint.reset();
  }
  static const std::shared_ptr<const LoadedModel>& model() { return shared_model; }

  static EngineServiceOptions options() {
    EngineServiceOptions result;
    result.kv.emplace();
    result.kv->ram_bytes = size_t{64} << 20;
    result.kv->snapshot_ram_bytes = size_t{16} << 20;
    return result;
  }

  static ServiceRequest raw(std::string text, int64_t max_tokens) {
    ServiceRequest request;
    request.prompt = RawPrompt{std::move(text)};
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    return request;
  }
  static ServiceRequest chat(const std::vector<std::string>& user_texts, int64_t max_tokens) {
    ServiceRequest request;
    ChatRequest chat;
    for (const std::string& text : user_texts)
      chat.messages.push_back(service_testing::message(ChatRole::kUser, text));
    request.prompt = std::move(chat);
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    return request;
  }

  static std::unique_ptr<Service::Ticket> submit(Service& service, const ServiceRequest& request,
                                                 RecordingListener& listener) {
    Service::Submitted submitted = service.submit(service.prepare(request), listener);
    EXPECT_EQ(submitted.index(), 0U);
    return std::get<0>(std::move(submitted));
  }

  struct Result {
    std::vector<int32_t> prompt_ids;
    CacheReport report;
    std::vector<RecordingListener::ChoiceLog> choices;
  };
  static Result run(Service& service, const ServiceRequest& request) {
    Result result;
    RecordingListener listener;
    PreparedRequest prepared = service.prepare(request);
    result.prompt_ids = prepared.prompt_ids;
    Service::Submitted submitted = service.submit(std::move(prepared), listener);
    EXPECT_EQ(submitted.index(), 0U);
    listener.wait();
    EXPECT_FALSE(listener.error) << listener.error->what();
    result.report = *listener.report;
    result.choices = listener.choices;
    return result;
  }

 private:
  inline static std::unique_ptr<service_testing::RoomyCheckpoint> shared_checkpoint;
  inline static std::shared_ptr<const LoadedModel> shared_model;
};

TEST_F(EngineServiceTest, AnswersARawPromptAsAConversationDoes) {
  const std::unique_ptr<Service> service = make_engine_service(model(), options());
  const Result result = run(*service, raw("the quick def", 12));
  TurnRequest turn;
  turn.prompt = result.prompt_ids;
  turn.output.kind = OutputFormat::Kind::kRaw;
  turn.generation.sampling.temperature = 0;
  turn.generation.max_tokens = 12;
  turn.generation.stop_ids = model()->stop_ids();
  ThreadPool pool(1);
  EXPECT_EQ(result.prompt_ids.front(), 0);
  EXPECT_EQ(result.choices.at(0).ids.size(), 12U);
  EXPECT_EQ(result.choices[0].finish->reason, FinishReason::kMaxTokens);
  EXPECT_EQ(result.choices[0].finish->usage.completion_tokens, 12);
}

TEST_F(EngineServiceTest, AnswersSeveralChatsAtOnceAsAlone) {
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < 5; ++i) {
    const std::unique_ptr<Service> service = make_engine_service(model(), options());
    alone.push_back(run(*service, chat({"question " + std::to_string(i)}, 8 + i)).choices.at(0).ids);
  }
  const std::unique_ptr<Service> service = make_engine_service(model(), options());
  std::deque<RecordingListener> listeners(5);
  std::vector<std::unique_ptr<Service::Ticket>> tickets;
  for (int i = 0; i < 5; ++i)
    tickets.push_back(
        submit(*service, chat({"question " + std::to_string(i)}, 8 + i), listeners[static_cast<size_t>(i)]));
  for (size_t i = 0; i < 5; ++i) {
    listeners[i].wait();
    EXPECT_EQ(listeners[i].choices.at(0).ids, alone[i]);
  }
}

}  // namespace
}  // namespace tidepool
