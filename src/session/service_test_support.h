#pragma once

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/temp_folder.h"
#include "session/engine_service.h"

/// What tests above the engine share: the tiny golden model with room for tools in its context, and a listener that
/// writes down what it hears.
namespace tidepool::service_testing {

/// The golden checkpoint with a longer context; lives as long as this.
class RoomyCheckpoint {
 public:
  RoomyCheckpoint() {
    const std::filesystem::path source = std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "ckpt";
    for (const auto& item : std::filesystem::directory_iterator(source)) {
      if (item.path().filename() != "config.json")
        std::filesystem::create_symlink(std::filesystem::absolute(item.path()), path() / item.path().filename());
    }
    std::ifstream in(source / "config.json");
    std::string text((std::istreambuf_iterator<char>(in)), {});
    constexpr std::string_view kFind = "\"max_position_embeddings\": 1024";
    const size_t at = text.find(kFind);
    TIDEPOOL_CHECK(at != std::string::npos, "the golden config has changed");
    text.replace(at, kFind.size(), "\"max_position_embeddings\": 16384");
    std::ofstream(path() / "config.json") << text;
  }
  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

/// Loaded once for all tests of a suite.
inline std::shared_ptr<const LoadedModel> load_roomy_model(const RoomyCheckpoint& checkpoint, bool has_drafts = false) {
  LoadOptions options;
  options.folder = checkpoint.path();
  options.threads = 2;
  options.has_drafts = has_drafts;
  return LoadedModel::load(options);
}

/// Writes down what it hears; a test may wait for the end, and do something at each call, on the engine's thread.
class RecordingListener final : public ServiceListener {
 public:
  struct ChoiceLog {
    std::vector<int32_t> ids;
    std::vector<SampledToken> tokens;
    std::vector<CompletionEvent> events;
    Completion completion;
    std::optional<ServiceFinish> finish;
  };

  std::function<void()> at_start;
  std::function<void()> at_prompt;
  std::function<void(size_t choice)> at_output;

  void on_start(const CacheReport& cache) override {
    report = cache;
    if (at_start) at_start();
  }
  void on_prompt(int64_t tokens_done, int64_t tokens_total) override {
    progress.emplace_back(tokens_done, tokens_total);
    if (at_prompt) at_prompt();
  }
  void on_output(size_t choice, std::span<const SampledToken> tokens,
                 std::span<const CompletionEvent> events) override {
    ChoiceLog& log = choice_log(choice);
    for (const SampledToken& token : tokens) {
      log.ids.push_back(token.id);
      log.tokens.push_back(token);
    }
    log.events.insert(log.events.end(), events.begin(), events.end());
    log.completion.add({events.begin(), events.end()});
    if (at_output) at_output(choice);
  }
  void on_finish(size_t choice, const ServiceFinish& finish) override { choice_log(choice).finish = finish; }
  void on_end(const std::optional<Error>& failure) override {
    const std::lock_guard lock(mutex_);
    error = failure;
    is_over_ = true;
    ended_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return is_over_; });
  }

  // Read them after wait(), or once the ticket is gone.
  std::optional<CacheReport> report;
  std::vector<std::pair<int64_t, int64_t>> progress;
  std::vector<ChoiceLog> choices;
  std::optional<Error> error;

 private:
  ChoiceLog& choice_log(size_t choice) {
    if (choices.size() <= choice) choices.resize(choice + 1);
    return choices[choice];
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
};

/// A message of plain text.
inline ChatMessage message(ChatRole role, std::string text) {
  ChatMessage result;
  result.role = role;
  result.content.emplace_back();
  result.content.back().text = std::move(text);
  return result;
}

}  // namespace tidepool::service_testing
