#include "base/checked.h"

#include <gtest/gtest.h>

#include <limits>

namespace tidepool {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(Checked, MulRefusesExactlyWhatDoesNotFit) {
  EXPECT_EQ(checked_mul(0, kMax), 0U);
  EXPECT_EQ(checked_mul(1, kMax), kMax);
  // (2^32 + 1)(2^32 - 1) = 2^64 - 1.
  EXPECT_EQ(checked_mul((uint64_t{1} << 32) + 1, (uint64_t{1} << 32) - 1), kMax);
  EXPECT_EQ(checked_mul(uint64_t{1} << 32, uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(checked_mul(2, kMax), std::nullopt);
}

TEST(Checked, AddRefusesExactlyWhatDoesNotFit) {
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
}

}  // namespace
}  // namespace tidepool
