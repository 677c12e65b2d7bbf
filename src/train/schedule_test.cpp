#include "train/schedule.h"

#include <gtest/gtest.h>

namespace tidepool {
namespace {

TEST(LearningRateSchedule, WarmsUpStaysFallsAndStays) {
  const LearningRateSchedule schedule{.peak = 2, .last = 1, .warm_up_end = 3, .flat_end = 10, .cosine_end = 20};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.5);
  EXPECT_DOUBLE_EQ(schedule.at(2), 1.5);
  EXPECT_DOUBLE_EQ(schedule.at(3), 2);
  EXPECT_DOUBLE_EQ(schedule.at(10), 2);
  EXPECT_DOUBLE_EQ(schedule.at(15), 1.5);  // half of the cosine
  EXPECT_DOUBLE_EQ(schedule.at(20), 1);
  EXPECT_DOUBLE_EQ(schedule.at(1000), 1);
}

TEST(LearningRateSchedule, MayHaveNoWarmUp) {
  EXPECT_DOUBLE_EQ((LearningRateSchedule{.peak = 2, .last = 1, .flat_end = 5, .cosine_end = 6}.at(0)), 2);
}

}  // namespace
}  // namespace tidepool
