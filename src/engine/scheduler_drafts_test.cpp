#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>

#include "engine/mutated_checkpoint.h"
#include "engine/scheduler_test_support.h"

namespace tidepool {
namespace {

using scheduler_testing::RecordingListener;
using scheduler_testing::SchedulerTest;
using Verdict = SequenceListener::Verdict;

/// The golden model with its draft head, and a cache for it.
class DraftedSchedulerTest : public SchedulerTest {
 protected:
  static SchedulerOptions drafted() {
    SchedulerOptions options;
    options.drafts = {DraftOptions::Mode::kFixed, 4};
    options.max_num_batched_tokens = 100;
    return options;
  }
  static KvCacheOptions kv_options() {
    KvCacheOptions options;
    options.ram_bytes = size_t{64} << 20;
    options.snapshot_ram_bytes = size_t{16} << 20;
    return options;
  }

  const Model drafting_{Checkpoint::open(scheduler_testing::golden_folder() / "ckpt"),
                        scheduler_testing::golden_ids("cases/engram_this_config.safetensors", "token_map"),
                        {.numerics = kOfficialNumerics, .kv_formats = {}, .has_drafts = true, .faults = {}}};
  KvCache kv_{drafting_.kv_layout(), kv_options()};
};

/// Greedy outputs are the same with drafts, whoever else is under way.
TEST_F(DraftedSchedulerTest, DraftsDoNotChangeGreedyOutputs) {
  constexpr uint32_t kRequests = 6;
  const auto make = [](uint32_t index) { return request(prompt(10 + 30 * index, index), 20 + index); };
  std::vector<std::vector<int32_t>> expected;
  for (uint32_t index = 0; index < kRequests; ++index)
    expected.push_back(generate(make(index), runtime_));
  Scheduler busy({drafting_, runtime_, &kv_}, drafted());
  std::deque<RecordingListener> listeners(kRequests);
  std::vector<std::unique_ptr<Scheduler::Ticket>> tickets;
  for (uint32_t index = 0; index < kRequests; ++index)
    tickets.push_back(submit(busy, make(index), listeners[index]));
  int64_t proposed = 0;
  for (uint32_t index = 0; index < kRequests; ++index) {
    listeners[index].wait();
    ASSERT_FALSE(listeners[index].error) << listeners[index].error->what();
    EXPECT_EQ(listeners[index].choices.at(0).ids, expected[index]) << index;
    const SequenceListener::ChoiceEnd& end = *listeners[index].choices[0].end;
    proposed += end.drafts.accepted_total() + end.drafts.rejected_total();
  }
  EXPECT_GT(proposed, 0);
}

/// With a fixed length even drawn outputs do not depend on neighbours.
TEST_F(DraftedSchedulerTest, DrawnOutputsWithDraftsDoNotDependOnNeighbours) {
  const auto make = [](uint32_t index) {
    SequenceRequest what = request(prompt(20 + 13 * index, index), 15);
    what.generation.sampling.temperature = 1;
    what.generation.sampling.seed = index;
    return what;
  };
  const auto outputs = [&](size_t at_once) {
    SchedulerOptions options = drafted();
    options.max_num_seqs = at_once;
    Scheduler busy({drafting_, runtime_, nullptr}, options);
    std::deque<RecordingListener> listeners(5);
    std::vector<std::unique_ptr<Scheduler::Ticket>> tickets;
    for (uint32_t index = 0; index < 5; ++index)
      tickets.push_back(submit(busy, make(index), listeners[index]));
    std::vector<std::vector<int32_t>> ids;
    for (RecordingListener& listener : listeners) {
      listener.wait();
      ids.push_back(listener.choices.at(0).ids);
    }
    return ids;
  };
  EXPECT_EQ(outputs(1), outputs(5));
}

/// Known fault 26: a stop among drafts that stand leaves the sequence at the stop.
TEST_F(DraftedSchedulerTest, StopAmongDraftsLeavesNothingBehindIt) {
  Scheduler one({drafting_, runtime_, &kv_}, drafted());
  for (size_t stop_at = 1; stop_at <= 8; ++stop_at) {
    const std::vector<InputToken> read = prompt(40, static_cast<uint32_t>(stop_at));
    RecordingListener listener;
    listener.at_token = [&](size_t, int32_t) {
      return listener.choices[0].ids.size() == stop_at ? Verdict::kEnough : Verdict::kGoOn;
    };
    const auto ticket = submit(one, request(read, 30), listener);
    listener.wait();
    ASSERT_EQ(listener.choices.at(0).ids.size(), stop_at);
    EXPECT_EQ(listener.choices[0].end->tokens, static_cast<int64_t>(stop_at));
    // The next turn continues what was seen, and all that was read of it is found: not a position more or less.
    std::vector<InputToken> next = read;
    for (const int32_t id : listener.choices[0].ids)
      next.push_back({id, false});
    next.push_back({7, false});
    EXPECT_EQ(kv_.resume({.text = {next, {}}, .salt = ""}).report.hit_tokens, static_cast<int64_t>(39 + stop_at));
  }
}

/// Drafts are optional: a head that gives no usable numbers costs speed, and no request.
TEST_F(DraftedSchedulerTest, FailingHeadFailsNobody) {
  const golden::MutatedCheckpoint broken({}, [](const std::string& name, std::vector<std::byte>& data) {
    if (name == "mtp.0.attn_norm.weight") std::ranges::fill(data, std::byte{0xff});  // NaN
    return true;
  });
  const Model model(Checkpoint::open(broken.path()),
                    scheduler_testing::golden_ids("cases/engram_this_config.safetensors", "token_map"),
                    {.numerics = kOfficialNumerics, .kv_formats = {}, .has_drafts = true, .faults = {}});
  for (const DraftOptions::Mode mode : {DraftOptions::Mode::kFixed, DraftOptions::Mode::kAuto}) {
    SchedulerOptions options = drafted();
    options.drafts.mode = mode;
    Scheduler one({model, runtime_, nullptr}, options);
    std::deque<RecordingListener> listeners(3);
    std::vector<std::unique_ptr<Scheduler::Ticket>> tickets;
    for (uint32_t index = 0; index < 3; ++index)
      tickets.push_back(submit(one, request(prompt(30, index), 10), listeners[index]));
    for (RecordingListener& listener : listeners)
      listener.wait();  // all, as the pool of threads serves one at a time: the scheduler, and then `generate`
    for (uint32_t index = 0; index < 3; ++index) {
      ASSERT_FALSE(listeners[index].error) << listeners[index].error->what();
      EXPECT_EQ(listeners[index].choices.at(0).ids, generate(request(prompt(30, index), 10), runtime_));
      EXPECT_EQ(listeners[index].choices[0].end->drafts.accepted_total(), 0);
    }
  }
}

TEST_F(DraftedSchedulerTest, WithoutAHeadANumberIsRefusedAndAutoDoesWithout) {
  try {
    (void)scheduler(drafted());
    FAIL() << "there is nothing to draft with";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("draft head"));
  }
  SchedulerOptions options = drafted();
  options.drafts.mode = DraftOptions::Mode::kAuto;
  const std::unique_ptr<Scheduler> one = scheduler(options);
  RecordingListener listener;
  const auto ticket = submit(*one, request(prompt(30), 5), listener);
  listener.wait();
  EXPECT_EQ(listener.choices.at(0).ids, generate(request(prompt(30), 5), runtime_));
}

}  // namespace
}  // namespace tidepool
