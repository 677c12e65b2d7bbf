#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/generator.h"
#include "engine/scheduler.h"
#include "formats/safetensors.h"

/// What tests of the scheduler share: the golden model, and listeners that write down what they hear.
namespace tidepool::scheduler_testing {

inline std::filesystem::path golden_folder() {
  return TIDEPOOL_GOLDEN_DIR;
}

inline std::vector<int32_t> golden_ids(const char* file, const std::string& name) {
  const SafetensorsFile tensors(golden_folder() / file);
  const TensorView view = tensors.tensor(name);
  std::vector<int32_t> ids(view.bytes / sizeof(int32_t));
  std::memcpy(ids.data(), view.data, view.bytes);
  return ids;
}

inline std::unique_ptr<const Model> load_golden_model() {
  return std::make_unique<const Model>(Checkpoint::open(golden_folder() / "ckpt"),
                                       golden_ids("cases/engram_this_config.safetensors", "token_map"));
}

/// Writes down what it hears; a test may wait for the end, and do something at each call, on the scheduler's thread.
class RecordingListener final : public SequenceListener {
 public:
  struct ChoiceLog {
    std::vector<int32_t> ids;
    std::vector<double> logprobs;
    std::optional<ChoiceEnd> end;
  };

  std::function<void()> at_start;
  std::function<void(int64_t done)> at_prompt;
  std::function<Verdict(size_t choice, int32_t id)> at_token;

  void on_start(const CacheReport& cache) override {
    report = cache;
    if (at_start) at_start();
  }
  void on_prompt(int64_t tokens_done, int64_t tokens_total) override {
    (void)tokens_total;
    progress.push_back(tokens_done);
    if (at_prompt) at_prompt(tokens_done);
  }
  Verdict on_token(size_t choice, const SampledToken& token, std::optional<FinishReason> finish) override {
    (void)finish;
    choices.resize(std::max(choices.size(), choice + 1));
    choices[choice].ids.push_back(token.id);
    if (token.logprobs) choices[choice].logprobs.push_back(token.logprobs->chosen);
    return at_token ? at_token(choice, token.id) : Verdict::kGoOn;
  }
  void on_choice_end(size_t choice, const ChoiceEnd& end) override { choices.at(choice).end = end; }
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
  [[nodiscard]] bool is_over() const {
    const std::lock_guard lock(mutex_);
    return is_over_;
  }

  // Read them after wait(), or once the ticket is gone.
  std::optional<CacheReport> report;
  std::vector<int64_t> progress;
  std::vector<ChoiceLog> choices;
  std::optional<Error> error;

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
};

/// A door that one thread waits at until another opens it.
class Door {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

/// Schedulers on the golden model, and what they are compared with.
class SchedulerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { shared_model = load_golden_model(); }
  static void TearDownTestSuite() { shared_model.reset(); }
  static const Model& model() { return *shared_model; }

  static std::vector<InputToken> prompt(size_t length, uint32_t seed = 1) {
    std::mt19937 random(seed);
    std::vector<InputToken> tokens(length);
    for (InputToken& token : tokens)
      token.id = static_cast<int32_t>(3 + random() % 490);
    return tokens;
  }

  static SequenceRequest request(std::vector<InputToken> tokens, int64_t max_tokens) {
    SequenceRequest result;
    result.prompt = std::move(tokens);
    result.generation.max_tokens = max_tokens;
    result.generation.sampling.temperature = 0;
    return result;
  }

  std::unique_ptr<Scheduler> scheduler(SchedulerOptions options = {}, KvCache* cache = nullptr) {
    return std::make_unique<Scheduler>(Scheduler::Engine{model(), runtime_, cache}, std::move(options));
  }

  static std::unique_ptr<KvCache> cache(size_t ram_bytes = size_t{64} << 20) {
    KvCacheOptions options;
    options.ram_bytes = ram_bytes;
    options.snapshot_ram_bytes = size_t{16} << 20;
    return std::make_unique<KvCache>(model().kv_layout(), options);
  }

  /// Must be taken.
  static std::unique_ptr<Scheduler::Ticket> submit(Scheduler& scheduler, SequenceRequest what,
                                                   RecordingListener& listener) {
    Scheduler::Submitted submitted = scheduler.submit(std::move(what), listener);
    EXPECT_EQ(submitted.index(), 0U);
    return std::get<0>(std::move(submitted));
  }

  /// The ids of one request that has a scheduler for itself.
  std::vector<int32_t> run(SequenceRequest what, KvCache* with_cache = nullptr) {
    const std::unique_ptr<Scheduler> alone = scheduler({}, with_cache);
    RecordingListener listener;
    const auto ticket = submit(*alone, std::move(what), listener);
    listener.wait();
    EXPECT_FALSE(listener.error) << listener.error->what();
    return listener.choices.at(0).ids;
  }

  /// What the generator for one sequence gives.
  static std::vector<int32_t> generate(const SequenceRequest& what, const Runtime& runtime) {
    Arena arena;
    SequenceState state = model().new_sequence();
    Generator generator({model(), runtime, arena}, state, what.generation);
    EXPECT_TRUE(generator.read_prompt(what.prompt));
    std::vector<int32_t> ids;
    for (std::optional<FinishReason> finish; !finish;) {
      const GenerationStep step = generator.next();
      ids.push_back(step.token->id);
      finish = step.finish;
    }
    return ids;
  }

  ThreadPool pool_{2};
  Runtime runtime_{pool_, kernels::select_kernels("auto", linear_inputs(kOfficialNumerics))};
  inline static std::unique_ptr<const Model> shared_model;
};

}  // namespace tidepool::scheduler_testing
