#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <random>
#include <string>

#include "engine/generator.h"
#include "engine/scheduler_test_support.h"

namespace tidepool {
namespace {

using scheduler_testing::Door;
using scheduler_testing::RecordingListener;
using Verdict = SequenceListener::Verdict;
using std::chrono::milliseconds;

class SchedulerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { shared_model = scheduler_testing::load_golden_model(); }
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
  std::vector<int32_t> generate(const SequenceRequest& what) {
    Arena arena;
    SequenceState state = model().new_sequence();
    Generator generator({model(), runtime_, arena}, state, what.generation);
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

TEST_F(SchedulerTest, GivesWhatTheGeneratorGives) {
  for (const double temperature : {0.0, 1.0}) {
    SequenceRequest what = request(prompt(37), 12);
    what.generation.sampling.temperature = temperature;
    what.generation.sampling.seed = 5;
    const std::vector<int32_t> expected = generate(what);
    EXPECT_EQ(run(std::move(what)), expected);
  }
}

TEST_F(SchedulerTest, FollowsTheGoldenGreedyAnswer) {
  std::vector<InputToken> tokens;
  for (const int32_t id : scheduler_testing::golden_ids("cases/greedy.safetensors", "prompt_ids"))
    tokens.push_back({id, false});
  const std::vector<int32_t> expected = scheduler_testing::golden_ids("cases/greedy.safetensors", "output_ids");
  SchedulerOptions options;
  options.replay = Replay::kFull;
  const std::unique_ptr<Scheduler> one = scheduler(options);
  RecordingListener listener;
  const auto ticket = submit(*one, request(tokens, static_cast<int64_t>(expected.size())), listener);
  listener.wait();
  EXPECT_EQ(listener.choices.at(0).ids, expected);
  EXPECT_EQ(listener.choices[0].end->reason, FinishReason::kMaxTokens);
  EXPECT_EQ(listener.report->prompt_tokens, static_cast<int64_t>(tokens.size()));
}

/// Requests of all lengths arrive while others are read and written, with little room in a forward call.
TEST_F(SchedulerTest, ResultsDoNotDependOnNeighbours) {
  constexpr size_t kRequests = 14;
  std::deque<RecordingListener> listeners(kRequests);
  std::vector<std::vector<int32_t>> alone;
  std::vector<std::unique_ptr<Scheduler::Ticket>> tickets(kRequests);
  const auto make = [&](uint32_t index) {
    SequenceRequest what = request(prompt(1 + index * 17 % 90, index), 4 + index % 9);
    what.generation.sampling.temperature = index % 2;
    what.generation.sampling.seed = index;
    what.generation.sampling.top_logprobs = 0;
    what.generation.sampling.repetition_penalty = index % 3 == 0 ? 1.2 : 1;
    what.priority = static_cast<int>(index % 2);
    return what;
  };
  for (uint32_t index = 0; index < kRequests; ++index)
    alone.push_back(generate(make(index)));
  SchedulerOptions options;
  options.max_num_seqs = 6;
  options.max_num_batched_tokens = 24;
  const std::unique_ptr<Scheduler> busy = scheduler(options);
  // Each request that has begun lets the next ones in.
  std::atomic<uint32_t> next = 0;
  std::atomic<size_t> submitted = 0;
  std::function<void()> submit_some = [&] {
    for (uint32_t count = 1 + next % 3; count > 0; --count) {
      const uint32_t index = next.fetch_add(1);
      if (index >= kRequests) return;
      tickets[index] = submit(*busy, make(index), listeners[index]);
      ++submitted;
    }
  };
  for (RecordingListener& listener : listeners)
    listener.at_prompt = [&](int64_t) { submit_some(); };
  submit_some();
  for (uint32_t index = 0; index < kRequests; ++index) {
    listeners[index].wait();
    EXPECT_EQ(listeners[index].choices.at(0).ids, alone[index]) << index;
  }
  EXPECT_EQ(submitted, kRequests);
}

}  // namespace
}  // namespace tidepool
