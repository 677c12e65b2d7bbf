#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "engine/scheduler_test_support.h"
#include "kv/kv_test_support.h"

namespace tidepool {
namespace {

using scheduler_testing::Door;
using scheduler_testing::RecordingListener;
using scheduler_testing::SchedulerTest;
using std::chrono::milliseconds;

/// Known faults 32 and 42: the same prompt again, and a prompt that begins alike.
TEST_F(SchedulerTest, KnownBeginningsAreNotReadAgain) {
  const std::unique_ptr<KvCache> kv = cache();
  std::vector<InputToken> shared = prompt(400);
  const std::vector<int32_t> first = run(request(shared, 4), kv.get());
  const std::unique_ptr<Scheduler> one = scheduler({}, kv.get());
  RecordingListener again;
  const auto ticket = submit(*one, request(shared, 4), again);
  again.wait();
  EXPECT_EQ(again.choices.at(0).ids, first);
  EXPECT_EQ(again.report->hit_tokens, 399);
  const std::vector<InputToken> tail = prompt(60, 9);
  shared.insert(shared.end(), tail.begin(), tail.end());
  RecordingListener further;
  const auto further_ticket = submit(*one, request(shared, 4), further);
  further.wait();
  EXPECT_GE(further.report->hit_tokens, 384);
}

TEST_F(SchedulerTest, ExactRequestsDoNotDependOnTheCache) {
  const auto exact = [&](std::vector<InputToken> tokens) {
    SequenceRequest what = request(std::move(tokens), 8);
    what.wants_exact_cache = true;
    return what;
  };
  const std::unique_ptr<KvCache> kv = cache();
  (void)run(request(prompt(300), 8), kv.get());
  std::vector<InputToken> longer = prompt(300);
  const std::vector<InputToken> tail = prompt(40, 7);
  longer.insert(longer.end(), tail.begin(), tail.end());
  SequenceRequest whole = request(longer, 8);
  whole.generation.replay = Replay::kFull;
  EXPECT_EQ(run(exact(longer), kv.get()), generate(whole, runtime_));
}

/// A scheduler with a whole replay takes nothing that a bounded one left, and finds its own.
TEST_F(SchedulerTest, WholeReplaysDoNotDependOnTheCache) {
  std::vector<InputToken> longer = prompt(300);
  const std::vector<InputToken> tail = prompt(40, 7);
  longer.insert(longer.end(), tail.begin(), tail.end());
  const auto whole = [&] {
    SequenceRequest what = request(longer, 8);
    what.generation.sampling.top_logprobs = 0;
    return what;
  };
  SchedulerOptions options;
  options.replay = Replay::kFull;
  const std::unique_ptr<Scheduler> cold = scheduler(options);
  RecordingListener expected;
  const auto cold_ticket = submit(*cold, whole(), expected);
  expected.wait();
  for (const Replay replay : {Replay::kExact, Replay::kFull}) {
    const std::unique_ptr<KvCache> kv = cache();
    (void)run(request(prompt(300), 8), kv.get());
    options.replay = replay;
    const std::unique_ptr<Scheduler> one = scheduler(options, kv.get());
    for (int round = 0; round < 2; ++round) {
      RecordingListener listener;
      const auto ticket = submit(*one, whole(), listener);
      listener.wait();
      EXPECT_EQ(listener.choices.at(0).ids, expected.choices.at(0).ids);
      EXPECT_EQ(listener.choices[0].logprobs, expected.choices[0].logprobs);
      EXPECT_TRUE(listener.report->is_exact);
      if (round == 1) {
        EXPECT_GE(listener.report->hit_tokens, 256);
      }
    }
  }
}

/// Salts isolate: nothing is found under another one.
TEST_F(SchedulerTest, SaltsIsolate) {
  const std::unique_ptr<KvCache> kv = cache();
  const auto salted = [&](const char* salt) {
    SequenceRequest what = request(prompt(300), 2);
    what.cache_salt = salt;
    return what;
  };
  (void)run(salted("a"), kv.get());
  const std::unique_ptr<Scheduler> one = scheduler({}, kv.get());
  RecordingListener other;
  const auto ticket = submit(*one, salted("b"), other);
  other.wait();
  EXPECT_EQ(other.report->hit_tokens, 0);
}

/// A disk from which several blocks are read as slowly as the test wants. (One is read to say why others are missing.)
class SlowStore final : public kv_testing::MemoryStore {
 public:
  std::vector<ReadResult> read(std::span<const BlockKey> keys) override {
    if (keys.size() > 1) {
      is_reading.open();
      may_read.wait();
    }
    return MemoryStore::read(keys);
  }
  Door is_reading;
  Door may_read;
};

TEST_F(SchedulerTest, OthersGoOnWhileContextIsReadFromDisk) {
  const auto store = std::make_shared<SlowStore>();
  KvCacheOptions kv_options;
  kv_options.ram_bytes = size_t{64} << 20;
  kv_options.store = store;
  {
    KvCache writer(model().kv_layout(), kv_options);
    (void)run(request(prompt(600), 2), &writer);
  }
  KvCache kv(model().kv_layout(), kv_options);
  const std::unique_ptr<Scheduler> one = scheduler({}, &kv);
  RecordingListener from_disk;
  const auto ticket = submit(*one, request(prompt(600), 2), from_disk);
  store->is_reading.wait();
  RecordingListener other;
  const auto other_ticket = submit(*one, request(prompt(30, 5), 6), other);
  other.wait();
  EXPECT_FALSE(from_disk.is_over());
  // Leaving while the disk is at it holds nobody up.
  RecordingListener leaves;
  auto leaves_ticket = submit(*one, request(prompt(600), 2), leaves);
  leaves_ticket.reset();
  store->may_read.open();
  from_disk.wait();
  EXPECT_GE(from_disk.report->disk_tokens, 512);
  EXPECT_TRUE(one->wait_idle(milliseconds(20000)));
}

}  // namespace
}  // namespace tidepool
