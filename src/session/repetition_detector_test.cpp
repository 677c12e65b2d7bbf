#include "session/repetition_detector.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tidepool {
namespace {

/// The detector's answer after each token.
std::vector<int64_t> answers(const std::vector<int32_t>& ids) {
  RepetitionDetector detector;
  std::vector<int64_t> result;
  result.reserve(ids.size());
  for (size_t count = 1; count <= ids.size(); ++count) {
    detector.note_last(std::span(ids).first(count));
    result.push_back(detector.repeated_tokens());
  }
  return result;
}

/// By its meaning: the longest run of any period, counted anew.
int64_t slow_answer(const std::vector<int32_t>& ids, size_t count) {
  int64_t best = 0;
  for (size_t period = 1; period <= RepetitionDetector::kPeriodMax && period < count; ++period) {
    int64_t run = 0;
    while (static_cast<size_t>(run) + period < count &&
           ids[count - 1 - static_cast<size_t>(run)] == ids[count - 1 - static_cast<size_t>(run) - period])
      ++run;
    if (run >= RepetitionDetector::kRoundsMin * static_cast<int64_t>(period)) best = std::max(best, run);
  }
  return best;
}

TEST(RepetitionDetector, EqualsCountingAnew) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    std::vector<int32_t> ids;
    while (ids.size() < 400) {  // loops of random parts, one behind another
      std::vector<int32_t> part(1 + random() % 9);
      for (int32_t& id : part)
        id = static_cast<int32_t>(random() % 3);
      for (size_t times = random() % 20; times > 0; --times)
        ids.insert(ids.end(), part.begin(), part.end());
    }
    const std::vector<int64_t> got = answers(ids);
    for (size_t count = 1; count <= ids.size(); ++count)
      ASSERT_EQ(got[count - 1], slow_answer(ids, count)) << count;
  }
}

TEST(RepetitionDetector, NoticesTheLongestPeriodAndNoLongerOne) {
  for (const auto& [period, is_noticed] :
       {std::pair(RepetitionDetector::kPeriodMax, true), std::pair(RepetitionDetector::kPeriodMax + 1, false)}) {
    std::vector<int32_t> ids(period * 10);
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<int32_t>(i % period);
    EXPECT_EQ(answers(ids).back(), is_noticed ? static_cast<int64_t>(period * 9) : 0);
  }
}

TEST(RepetitionDetector, ForgetsALoopThatEnded) {
  std::vector<int32_t> ids(100, 7);
  ids.push_back(8);
  const std::vector<int64_t> got = answers(ids);
  EXPECT_EQ(got[99], 99);
  EXPECT_EQ(got[100], 0);
}

}  // namespace
}  // namespace tidepool
