#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace tidepool {
namespace {

TEST(ThreadPool, EveryIndexRunsOnceWhateverTheNumberOfThreads) {
  for (const size_t threads : {1U, 2U, 3U, 8U}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.thread_count(), threads);
    for (const size_t count : {0U, 1U, 2U, 7U, 1000U}) {
      std::vector<std::atomic<int>> calls(count);
      pool.run(count, [&](size_t index, size_t /*worker*/) { calls[index].fetch_add(1); });
      for (size_t i = 0; i < count; ++i)
        EXPECT_EQ(calls[i].load(), 1) << "index " << i << " of " << count;
    }
  }
}

TEST(ThreadPool, ZeroMeansTheCoresOfThisProcess) {
  EXPECT_GE(ThreadPool(0).thread_count(), 1);
}

TEST(ThreadPool, TwoBodiesWithOneWorkerNumberNeverRunAtOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(pool.thread_count());
  std::atomic<bool> overlapped{false};
  pool.run(2000, [&](size_t /*index*/, size_t worker) {
    if (inside.at(worker).fetch_add(1) != 0) overlapped = true;
    inside[worker].fetch_sub(1);
  });
  EXPECT_FALSE(overlapped);
}

TEST(ThreadPool, PlainWritesOfBodiesAreSeenByTheCallerAndByTheNextJob) {
  ThreadPool pool(3);
  std::vector<size_t> values(64, 0);
  for (size_t round = 0; round < 2000; ++round) {
    pool.run(values.size(), [&](size_t index, size_t /*worker*/) { values[index] += index; });
  }
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(values[i], 2000 * i);
}

TEST(ThreadPool, AnExceptionOfABodyIsRethrownAndThePoolStaysUsable) {
  for (const size_t threads : {1U, 4U}) {
    ThreadPool pool(threads);
    try {
      pool.run(100, [](size_t index, size_t /*worker*/) {
        if (index == 37) throw std::runtime_error("body 37");
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()), "body 37");
    }
    std::atomic<int> calls{0};
    pool.run(10, [&](size_t /*index*/, size_t /*worker*/) { calls.fetch_add(1); });
    EXPECT_EQ(calls.load(), 10);
  }
}

TEST(ThreadPool, AfterAFailureNoNewIndexIsStarted) {
  ThreadPool pool(1);
  int calls = 0;
  EXPECT_THROW(pool.run(100,
                        [&](size_t /*index*/, size_t /*worker*/) {
                          ++calls;
                          throw std::runtime_error("first");
                        }),
               std::runtime_error);
  EXPECT_EQ(calls, 1);
}

TEST(ThreadPool, PoolsThatNeverRanAnythingEnd) {
  for (int i = 0; i < 50; ++i)
    ThreadPool pool(4);
}

TEST(ThreadPoolDeathTest, AJobInsideAJobIsABug) {
  ThreadPool pool(1);
  EXPECT_DEATH(pool.run(1, [&](size_t, size_t) { pool.run(1, [](size_t, size_t) {}); }), "inside a job");
}

}  // namespace
}  // namespace tidepool
