#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "engine/scheduler_test_support.h"
#include "kv/kv_test_support.h"

namespace tidepool {
namespace {

using scheduler_testing::Door;
using scheduler_testing::RecordingListener;
using scheduler_testing::SchedulerTest;
using Verdict = SequenceListener::Verdict;
using std::chrono::milliseconds;

/// Known fault 76. The ticket dies on the scheduler's thread here, so that "within one forward call" is exact.
TEST_F(SchedulerTest, CancelledWhileReadingStopsWithinOneChunkAndKeepsWhatWasRead) {
  const std::unique_ptr<KvCache> kv = cache();
  {
    SchedulerOptions options;
    options.max_num_batched_tokens = 200;
    const std::unique_ptr<Scheduler> one = scheduler(options, kv.get());
    RecordingListener listener;
    std::unique_ptr<Scheduler::Ticket> ticket;
    Door submitted;
    listener.at_start = [&] { submitted.wait(); };
    listener.at_prompt = [&](int64_t) { ticket.reset(); };
    ticket = submit(*one, request(prompt(1000), 5), listener);
    submitted.open();
    EXPECT_TRUE(one->wait_idle(milliseconds(20000)));
    EXPECT_TRUE(listener.choices.empty());
    EXPECT_FALSE(listener.is_over());
    EXPECT_THAT(listener.progress, testing::ElementsAre(200));
    EXPECT_EQ(one->status().forward_calls, 1U);
  }
  const KvCache::Resumed resumed = kv->resume({.text = {prompt(1000), {}}, .salt = ""});
  EXPECT_EQ(resumed.report.hit_tokens, kBlockTokens);
}

TEST_F(SchedulerTest, CancelledAtAnyStageLeavesRoomForOthers) {
  const std::unique_ptr<KvCache> kv = cache();
  SchedulerOptions options;
  options.max_num_seqs = 1;
  options.max_num_batched_tokens = 16;
  const std::unique_ptr<Scheduler> one = scheduler(options, kv.get());
  enum class Stage { kAtOnce, kStarted, kReading, kFirstToken, kWriting, kQueued, kOver };
  for (const Stage stage : {Stage::kAtOnce, Stage::kStarted, Stage::kReading, Stage::kFirstToken, Stage::kWriting,
                            Stage::kQueued, Stage::kOver}) {
    SCOPED_TRACE(static_cast<int>(stage));
    RecordingListener before;
    RecordingListener listener;
    std::unique_ptr<Scheduler::Ticket> before_ticket;
    if (stage == Stage::kQueued) before_ticket = submit(*one, request(prompt(100), 20), before);
    Door reached;
    listener.at_start = [&] {
      if (stage == Stage::kStarted) reached.open();
    };
    listener.at_prompt = [&](int64_t) {
      if (stage == Stage::kReading) reached.open();
    };
    listener.at_token = [&](size_t, int32_t) {
      const size_t count = listener.choices[0].ids.size();
      if (stage == Stage::kFirstToken || (stage == Stage::kWriting && count == 4)) reached.open();
      return Verdict::kGoOn;
    };
    auto ticket = submit(*one, request(prompt(60, 2), stage == Stage::kOver ? 2 : 500), listener);
    if (stage == Stage::kOver) {
      listener.wait();
    } else if (stage != Stage::kAtOnce && stage != Stage::kQueued) {
      reached.wait();
    }
    ticket.reset();
    const size_t heard = listener.progress.size() + listener.choices.size();
    RecordingListener next;
    const auto next_ticket = submit(*one, request(prompt(10), 3), next);
    next.wait();
    EXPECT_EQ(next.choices.at(0).ids.size(), 3U);
    EXPECT_EQ(listener.progress.size() + listener.choices.size(), heard);
    EXPECT_EQ(listener.is_over(), stage == Stage::kOver);
  }
  EXPECT_TRUE(one->wait_idle(milliseconds(20000)));
  EXPECT_EQ(one->status().running, 0);
  EXPECT_EQ(one->status().waiting, 0);
  EXPECT_EQ(kv->stats().reserved_bytes, 0U);
}

TEST_F(SchedulerTest, DeadlineEndsWhatWaitsAndWhatRuns) {
  std::atomic<int> seconds = 0;
  SchedulerOptions options;
  options.max_num_seqs = 1;
  options.max_num_batched_tokens = 16;
  options.now = [&] { return std::chrono::steady_clock::time_point(std::chrono::seconds(seconds.load())); };
  const std::unique_ptr<Scheduler> one = scheduler(options);
  const auto until = [](int second) { return std::chrono::steady_clock::time_point(std::chrono::seconds(second)); };
  RecordingListener runs;
  RecordingListener waits;
  std::unique_ptr<Scheduler::Ticket> waits_ticket;
  runs.at_prompt = [&](int64_t done) {
    if (done < 50) return;
    SequenceRequest what = request(prompt(10), 1);
    what.deadline = until(5);
    if (!waits_ticket) waits_ticket = submit(*one, std::move(what), waits);
    seconds = 10;
  };
  SequenceRequest what = request(prompt(100), 1);
  what.deadline = until(9);
  const auto ticket = submit(*one, std::move(what), runs);
  runs.wait();
  waits.wait();
  for (const RecordingListener* listener : {&runs, &waits}) {
    ASSERT_TRUE(listener->error);
    EXPECT_EQ(listener->error->code(), ErrorCode::kCancelled);
    EXPECT_THAT(listener->error->what(), testing::HasSubstr("deadline"));
  }
  EXPECT_FALSE(waits.report);
}

/// Known fault 78: refused before anything was said, with a time to come back.
TEST_F(SchedulerTest, FullQueueRefusesAtOnce) {
  SchedulerOptions options;
  options.max_num_seqs = 1;
  options.queue_limit = 2;
  const std::unique_ptr<Scheduler> one = scheduler(options);
  Door door;
  Door running;
  RecordingListener first;
  first.at_start = [&] {
    running.open();
    door.wait();
  };
  const auto first_ticket = submit(*one, request(prompt(5), 1), first);
  running.wait();
  std::deque<RecordingListener> queued(2);
  std::vector<std::unique_ptr<Scheduler::Ticket>> tickets;
  tickets.reserve(queued.size());
  for (RecordingListener& listener : queued)
    tickets.push_back(submit(*one, request(prompt(5), 1), listener));
  RecordingListener refused;
  const Scheduler::Submitted answer = one->submit(request(prompt(5), 1), refused);
  ASSERT_TRUE(std::holds_alternative<Refusal>(answer));
  EXPECT_EQ(std::get<Refusal>(answer).reason, Refusal::Reason::kQueueFull);
  EXPECT_GE(std::get<Refusal>(answer).retry_after_s, 1);
  EXPECT_LE(std::get<Refusal>(answer).retry_after_s, 60);
  EXPECT_EQ(one->status().waiting, 2);
  door.open();
  for (RecordingListener& listener : queued)
    listener.wait();
  EXPECT_FALSE(refused.is_over());
}

/// Without a queue a burst is taken as far as there are places.
TEST_F(SchedulerTest, QueueLimitCountsThoseThatWaitOnly) {
  for (const size_t queue_limit : {size_t{0}, size_t{2}}) {
    SchedulerOptions options;
    options.max_num_seqs = 3;
    options.queue_limit = queue_limit;
    const std::unique_ptr<Scheduler> one = scheduler(options);
    Door door;
    std::deque<RecordingListener> listeners(3 + queue_limit);
    std::vector<std::unique_ptr<Scheduler::Ticket>> tickets;
    for (RecordingListener& listener : listeners) {
      listener.at_start = [&] { door.wait(); };
      tickets.push_back(submit(*one, request(prompt(5), 1), listener));
    }
    RecordingListener refused;
    EXPECT_TRUE(std::holds_alternative<Refusal>(one->submit(request(prompt(5), 1), refused)));
    door.open();
    for (RecordingListener& listener : listeners)
      listener.wait();
    EXPECT_TRUE(one->wait_idle(milliseconds(20000)));
    RecordingListener again;
    const auto ticket = submit(*one, request(prompt(5), 1), again);
    again.wait();
  }
}

/// Cancelling waits for nothing, not even for the call of the listener in which it is done.
TEST_F(SchedulerTest, CancellingDoesNotWait) {
  const std::unique_ptr<Scheduler> one = scheduler();
  RecordingListener listener;
  std::unique_ptr<Scheduler::Ticket> ticket;
  Door inside;
  Door cancelled;
  listener.at_token = [&](size_t, int32_t) {
    inside.open();
    cancelled.wait();
    return Verdict::kGoOn;
  };
  ticket = submit(*one, request(prompt(20), 500), listener);
  inside.wait();
  ticket->cancel();
  ticket->cancel();
  cancelled.open();
  listener.wait();
  ASSERT_TRUE(listener.error);
  EXPECT_EQ(listener.error->code(), ErrorCode::kCancelled);
  EXPECT_LE(listener.choices.at(0).ids.size(), 2U);
  ticket->cancel();  // over, so nothing happens
}

TEST_F(SchedulerTest, WaitsForMemoryAndSaysSo) {
  const size_t block_bytes = model().kv_layout()->block_bytes;
  const std::unique_ptr<KvCache> kv = cache(4 * block_bytes);
  SchedulerOptions options;
  options.queue_limit = 1;
  const std::unique_ptr<Scheduler> one = scheduler(options, kv.get());
  RecordingListener large;
  RecordingListener waits;
  RecordingListener refused;
  std::unique_ptr<Scheduler::Ticket> waits_ticket;
  std::optional<Refusal> refusal;
  large.at_token = [&](size_t, int32_t) {
    const size_t count = large.choices[0].ids.size();
    if (count == 1) waits_ticket = submit(*one, request(prompt(200, 3), 5), waits);
    if (count < 5) return Verdict::kGoOn;
    // Until it is known that the other one waits for memory.
    const Scheduler::Submitted answer = one->submit(request(prompt(5), 1), refused);
    if (!std::holds_alternative<Refusal>(answer)) return Verdict::kGoOn;
    refusal = std::get<Refusal>(answer);
    return refusal->reason == Refusal::Reason::kNoMemory ? Verdict::kEnough : Verdict::kGoOn;
  };
  const auto ticket = submit(*one, request(prompt(300, 2), 200), large);
  large.wait();
  waits.wait();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->reason, Refusal::Reason::kNoMemory);
  EXPECT_FALSE(waits.error) << waits.error->what();
  EXPECT_EQ(waits.choices.at(0).ids.size(), 5U);
}

/// Counts how often each block is asked for.
class CountingStore final : public kv_testing::MemoryStore {
 public:
  std::optional<BlockInfo> find(const BlockKey& key) const override {
    {
      const std::lock_guard lock(counts_mutex_);
      ++counts_[key];
    }
    return MemoryStore::find(key);
  }
  [[nodiscard]] std::map<BlockKey, int64_t> counts() const {
    const std::lock_guard lock(counts_mutex_);
    return counts_;
  }

 private:
  mutable std::mutex counts_mutex_;
  mutable std::map<BlockKey, int64_t> counts_;
};

/// Others end one by one, and only the last gives enough memory: a prompt that may lie on disk is not looked up at
/// each.
TEST_F(SchedulerTest, WhoWaitsForMemoryIsLookedUpAgainOnlyWhenThereIsRoom) {
  KvCacheOptions kv_options;
  kv_options.ram_bytes = 8 * model().kv_layout()->block_bytes;
  const auto asked_once = std::make_shared<CountingStore>();
  kv_options.store = asked_once;
  (void)KvCache(model().kv_layout(), kv_options).resume({.text = {prompt(400, 3), {}}, .salt = ""});
  const auto store = std::make_shared<CountingStore>();
  kv_options.store = store;
  KvCache kv(model().kv_layout(), kv_options);
  const std::unique_ptr<Scheduler> one = scheduler({}, &kv);
  std::array<RecordingListener, 4> small;  // a block each
  RecordingListener large;                 // four blocks of the eight
  RecordingListener waits;                 // four more
  std::vector<std::unique_ptr<Scheduler::Ticket>> tickets;
  std::unique_ptr<Scheduler::Ticket> waits_ticket;
  size_t ended = 0;
  for (size_t index = 0; index < small.size(); ++index)
    small[index].at_token = [&, index](size_t, int32_t) { return index < ended ? Verdict::kEnough : Verdict::kGoOn; };
  large.at_token = [&](size_t, int32_t) {
    const size_t count = large.choices[0].ids.size();
    if (count == 3) waits_ticket = submit(*one, request(prompt(400, 3), 5), waits);
    // Every few tokens, so that each end is looked at by itself.
    if (count > 10 && count % 5 == 0 && one->status().waiting == 1) ++ended;
    return waits.report || count > 150 ? Verdict::kEnough : Verdict::kGoOn;
  };
  tickets.push_back(submit(*one, request(prompt(300, 2), 200), large));
  for (RecordingListener& listener : small)
    tickets.push_back(submit(*one, request(prompt(5), 110), listener));
  waits.wait();
  large.wait();
  ASSERT_FALSE(waits.error) << waits.error->what();
  EXPECT_GE(ended, small.size());
  ASSERT_FALSE(asked_once->counts().empty());
  for (const auto& [key, count] : asked_once->counts())
    EXPECT_EQ(store->counts().at(key), 2 * count) << "once on arrival, and once when it could begin";
}

TEST_F(SchedulerTest, WhatNeverFitsFailsAndOthersGoOn) {
  const std::unique_ptr<KvCache> kv = cache(4 * model().kv_layout()->block_bytes);
  const std::unique_ptr<Scheduler> one = scheduler({}, kv.get());
  RecordingListener never;
  RecordingListener fits;
  const auto never_ticket = submit(*one, request(prompt(500), 100), never);
  const auto fits_ticket = submit(*one, request(prompt(100), 5), fits);
  never.wait();
  fits.wait();
  ASSERT_TRUE(never.error);
  EXPECT_EQ(never.error->code(), ErrorCode::kResourceExhausted);
  EXPECT_FALSE(never.report);
  EXPECT_EQ(fits.choices.at(0).ids.size(), 5U);
}

TEST_F(SchedulerTest, DrainingFinishesWhatWasTaken) {
  const std::unique_ptr<Scheduler> one = scheduler();
  RecordingListener listener;
  RecordingListener refused;
  std::optional<Scheduler::Submitted> answer;
  listener.at_prompt = [&](int64_t) {
    one->drain();
    answer = one->submit(request(prompt(5), 1), refused);
  };
  const auto ticket = submit(*one, request(prompt(30), 10), listener);
  listener.wait();
  EXPECT_EQ(listener.choices.at(0).ids.size(), 10U);
  ASSERT_TRUE(answer && std::holds_alternative<Refusal>(*answer));
  EXPECT_EQ(std::get<Refusal>(*answer).reason, Refusal::Reason::kDraining);
  EXPECT_TRUE(one->wait_idle(milliseconds(20000)));
  EXPECT_TRUE(one->status().is_draining);
}

TEST_F(SchedulerTest, StoppingEndsEverythingAndKeepsWhatWasComputed) {
  const std::unique_ptr<KvCache> kv = cache();
  SchedulerOptions options;
  options.max_num_seqs = 1;
  std::unique_ptr<Scheduler> one = scheduler(options, kv.get());
  RecordingListener running;
  RecordingListener queued;
  Door writes;
  running.at_token = [&](size_t, int32_t) {
    writes.open();
    return Verdict::kGoOn;
  };
  auto running_ticket = submit(*one, request(prompt(140), 800), running);
  auto queued_ticket = submit(*one, request(prompt(5), 5), queued);
  writes.wait();
  one.reset();
  for (const RecordingListener* listener : {&running, &queued}) {
    ASSERT_TRUE(listener->is_over() && listener->error);
    EXPECT_EQ(listener->error->code(), ErrorCode::kCancelled);
  }
  EXPECT_GE(kv->resume({.text = {prompt(140), {}}, .salt = ""}).report.hit_tokens, kBlockTokens);
  running_ticket.reset();  // tickets may outlive the scheduler
  queued_ticket.reset();
}

/// Excludes every token: what a constraint that contradicts itself does.
class ImpossibleConstraint final : public LogitsConstraint {
 public:
  void mask(std::span<float> logits) override { std::ranges::fill(logits, -std::numeric_limits<float>::infinity()); }
  void accept(int32_t id) override { (void)id; }
};

TEST_F(SchedulerTest, FailureOfOneDoesNotTouchTheOthers) {
  const std::unique_ptr<Scheduler> one = scheduler();
  RecordingListener fails;
  RecordingListener goes_on;
  SequenceRequest what = request(prompt(20), 5);
  what.constraints.push_back(std::make_unique<ImpossibleConstraint>());
  const auto goes_on_ticket = submit(*one, request(prompt(30), 12), goes_on);
  const auto fails_ticket = submit(*one, std::move(what), fails);
  fails.wait();
  goes_on.wait();
  ASSERT_TRUE(fails.error);
  EXPECT_EQ(fails.error->code(), ErrorCode::kNumeric);
  EXPECT_EQ(goes_on.choices.at(0).ids, generate(request(prompt(30), 12), runtime_));
}

TEST_F(SchedulerTest, RefusesWhatCannotRun) {
  SchedulerOptions options;
  options.max_num_seqs = 2;
  options.max_model_len = 40;
  const std::unique_ptr<Scheduler> one = scheduler(options);
  RecordingListener listener;
  const auto refusal = [&](SequenceRequest what) -> std::pair<ErrorCode, std::string> {
    try {
      (void)one->submit(std::move(what), listener);
    } catch (const Error& error) {
      return {error.code(), error.what()};
    }
    return {ErrorCode::kIo, "taken"};
  };
  using testing::HasSubstr;
  using testing::Pair;
  EXPECT_THAT(refusal(request({}, 1)), Pair(ErrorCode::kInvalidArgument, HasSubstr("empty")));
  EXPECT_THAT(refusal(request({{512, false}}, 1)), Pair(ErrorCode::kInvalidArgument, HasSubstr("512")));
  EXPECT_THAT(refusal(request({{-1, false}}, 1)), Pair(ErrorCode::kInvalidArgument, HasSubstr("-1")));
  EXPECT_THAT(refusal(request(prompt(5), 0)), Pair(ErrorCode::kInvalidArgument, HasSubstr("max_tokens")));
  EXPECT_THAT(refusal(request(prompt(40), 1)),
              Pair(ErrorCode::kResourceExhausted, testing::AllOf(HasSubstr("40 tokens"), HasSubstr("context 40"))));
  SequenceRequest many = request(prompt(5), 1);
  many.choice_count = 3;
  EXPECT_THAT(refusal(std::move(many)), Pair(ErrorCode::kInvalidArgument, HasSubstr("--max-num-seqs")));
}

TEST_F(SchedulerTest, RefusesOptionsOutOfRange) {
  const auto refuses = [&](const SchedulerOptions& options) { EXPECT_THROW((void)scheduler(options), Error); };
  refuses({.max_num_seqs = 0});
  refuses({.max_num_seqs = 16, .max_num_batched_tokens = 16});
  for (const double share : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()})
    refuses({.max_prefill_share = share});
  for (const int64_t length : {-1, 1, 1025})
    refuses({.max_model_len = length});
}

/// Known fault 80: a long prefill is seen to go on.
TEST_F(SchedulerTest, ProgressShowsDuringALongPrompt) {
  SchedulerOptions options;
  options.max_num_batched_tokens = 20;
  const std::unique_ptr<Scheduler> one = scheduler(options);
  std::vector<uint64_t> calls;
  RecordingListener listener;
  listener.at_prompt = [&](int64_t) { calls.push_back(one->status().forward_calls); };
  const auto ticket = submit(*one, request(prompt(200), 1), listener);
  listener.wait();
  ASSERT_EQ(calls.size(), 10U);
  EXPECT_TRUE(std::ranges::is_sorted(calls));
  EXPECT_GE(calls.back(), 9U);
}

/// Clients come and go at random moments from several threads; in the end nothing is left.
TEST_F(SchedulerTest, RandomClientsLeaveNothingBehind) {
  const std::unique_ptr<KvCache> kv = cache(40 * model().kv_layout()->block_bytes);
  SchedulerOptions options;
  options.max_num_seqs = 5;
  options.max_num_batched_tokens = 48;
  options.queue_limit = 4;
  const std::unique_ptr<Scheduler> one = scheduler(options, kv.get());
  const auto client = [&](uint32_t seed) {
    std::mt19937 random(seed);
    for (int round = 0; round < 8; ++round) {
      RecordingListener listener;
      Door some_progress;
      const uint32_t patience = static_cast<uint32_t>(random() % 12);
      std::atomic<uint32_t> heard = 0;
      const auto hear = [&] {
        if (heard.fetch_add(1) >= patience) some_progress.open();
      };
      listener.at_prompt = [&](int64_t) { hear(); };
      listener.at_token = [&](size_t, int32_t) {
        hear();
        return Verdict::kGoOn;
      };
      SequenceRequest what = request(prompt(1 + random() % 250, static_cast<uint32_t>(random() % 3)), 15);
      what.choice_count = 1 + random() % 2;
      Scheduler::Submitted submitted = one->submit(std::move(what), listener);
      if (!std::holds_alternative<std::unique_ptr<Scheduler::Ticket>>(submitted)) continue;
      if (random() % 3 == 0) {
        listener.wait();
        EXPECT_FALSE(listener.error) << listener.error->what();
      } else if (random() % 2 == 0) {
        some_progress.wait();
      }
    }
  };
  std::vector<std::jthread> clients;
  for (uint32_t seed = 0; seed < 6; ++seed)
    clients.emplace_back(client, seed);
  clients.clear();
  EXPECT_TRUE(one->wait_idle(milliseconds(20000)));
  EXPECT_EQ(kv->stats().reserved_bytes, 0U);
}

}  // namespace
}  // namespace tidepool
