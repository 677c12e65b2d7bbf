#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/safetensors.h"
#include "session/service_test_support.h"

namespace tidepool::service_testing {

/// A turn of two calls, behind reasoning and a word, as a line of a script.
inline constexpr std::string_view kTwoCalls =
    R"({"text": "hm</think>I look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"weather\">\n)"
    R"(<｜DSML｜ parameter name=\"city\" string=\"true\">Köln</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n)"
    R"(<｜DSML｜ invoke name=\"weather\">\n<｜DSML｜ parameter name=\"city\" string=\"true\">Ulm</｜DSML｜ parameter>\n)"
    R"(<｜DSML｜ parameter name=\"days\" string=\"false\">2</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"})";

/// Services on the golden model, and one way to ask them.
class ServiceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_checkpoint = std::make_unique<RoomyCheckpoint>();
    shared_model = load_roomy_model(*shared_checkpoint);
  }
  static void TearDownTestSuite() {
    shared_model.reset();
    shared_checkpoint.reset();
  }
  static const std::shared_ptr<const LoadedModel>& model() { return shared_model; }

  static EngineServiceOptions options() {
    EngineServiceOptions result;
    result.kv.emplace();
    result.kv->ram_bytes = size_t{128} << 20;
    result.kv->snapshot_ram_bytes = size_t{32} << 20;
    return result;
  }
  /// A service whose outputs are `lines` of a script.
  std::unique_ptr<Service> scripted(std::string_view lines) {
    const std::filesystem::path file = folder_ / "script.jsonl";
    std::ofstream(file) << lines;
    EngineServiceOptions how = options();
    how.script = file;
    return make_engine_service(model(), how);
  }

  static std::vector<int32_t> golden_ids(const std::string& name) {
    const SafetensorsFile file(std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "cases/greedy.safetensors");
    const TensorView view = file.tensor(name);
    std::vector<int32_t> ids(view.bytes / sizeof(int32_t));
    std::memcpy(ids.data(), view.data, view.bytes);
    return ids;
  }
  /// As JSON.
  static std::string list(const std::vector<int32_t>& ids) {
    std::string text = "[";
    for (const int32_t id : ids)
      text += (text.size() > 1 ? ", " : "") + std::to_string(id);
    return text + "]";
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
      chat.messages.push_back(message(ChatRole::kUser, text));
    request.prompt = std::move(chat);
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    return request;
  }
  static ServiceRequest chat_with_tools(const std::vector<std::string>& user_texts, int64_t max_tokens) {
    ServiceRequest request = chat(user_texts, max_tokens);
    ToolDefinition tool;
    tool.name = "weather";
    std::get<ChatRequest>(request.prompt).tools.push_back(std::move(tool));
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
    const Service::Submitted submitted = service.submit(std::move(prepared), listener);
    EXPECT_EQ(submitted.index(), 0U);
    listener.wait();
    EXPECT_FALSE(listener.error) << listener.error->what();
    if (listener.report) result.report = *listener.report;
    result.choices = listener.choices;
    return result;
  }

 private:
  TempFolder folder_;
  inline static std::unique_ptr<RoomyCheckpoint> shared_checkpoint;
  inline static std::shared_ptr<const LoadedModel> shared_model;
};

}  // namespace tidepool::service_testing
