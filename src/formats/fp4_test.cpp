#include "formats/fp4.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "formats/golden_test_util.h"

namespace tidepool {
namespace {

/// The nearest of the eight magnitudes, ties to the even code, found by looking at every one.
uint8_t nearest_e2m1(float value, const std::vector<float>& table) {
  const double magnitude = std::fabs(static_cast<double>(value));
  uint8_t best = 0;
  for (uint8_t code = 1; code < 8; ++code) {
    const double distance = std::fabs(static_cast<double>(table[code]) - magnitude);
    const double best_distance = std::fabs(static_cast<double>(table[best]) - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 8 : 0));
}

std::vector<float> golden_table() {
  return GoldenCase("kernels").floats("table.e2m1");
}

TEST(E2m1, DecodesEveryCode) {
  const std::vector<float> expected = golden_table();
  ASSERT_EQ(expected.size(), 16U);
  for (uint8_t code = 0; code < 16; ++code) {
    EXPECT_EQ(to_float(E2m1{code}), expected[code]) << int{code};
    EXPECT_EQ(std::signbit(to_float(E2m1{code})), code >= 8) << int{code};
  }
}

TEST(E2m1, UsesOnlyTheLowNibble) {
  for (uint8_t code = 0; code < 16; ++code) {
    EXPECT_EQ(to_float(E2m1{static_cast<uint8_t>(code | 0xf0)}), to_float(E2m1{code}));
  }
}

TEST(E2m1, EncodesEveryCodeToItself) {
  for (uint8_t code = 0; code < 16; ++code)
    EXPECT_EQ(to_e2m1(to_float(E2m1{code})).bits, code);
}

TEST(E2m1, BreaksTiesToTheEvenCode) {
  // The published list of ties. (docs/model.md 3.1)
  const float ties[][2] = {{0.25F, 0}, {0.75F, 1}, {1.25F, 1}, {1.75F, 2}, {2.5F, 2}, {3.5F, 4}, {5.0F, 4}};
  for (const auto& [value, rounded] : ties) {
    EXPECT_EQ(to_float(to_e2m1(value)), rounded) << value;
    EXPECT_EQ(to_float(to_e2m1(-value)), -rounded) << value;
  }
}

TEST(E2m1, RoundsToTheNearestAroundEveryMidpoint) {
  const std::vector<float> table = golden_table();
  for (size_t code = 0; code < 7; ++code) {
    const float midpoint = (table[code] + table[code + 1]) / 2;
    for (const float value : {midpoint, std::nextafter(midpoint, 0.0F), std::nextafter(midpoint, 10.0F),
                              std::nextafter(table[code], 10.0F), std::nextafter(table[code + 1], 0.0F)}) {
      EXPECT_EQ(to_e2m1(value).bits, nearest_e2m1(value, table)) << value;
      EXPECT_EQ(to_e2m1(-value).bits, nearest_e2m1(-value, table)) << value;
    }
  }
}

TEST(E2m1, RoundsRandomValues) {
  const std::vector<float> table = golden_table();
  std::mt19937 random(2);
  std::uniform_real_distribution<float> values(-8.0F, 8.0F);
  for (int i = 0; i < 20000; ++i) {
    const float value = values(random);
    ASSERT_EQ(to_e2m1(value).bits, nearest_e2m1(value, table)) << value;
  }
}

TEST(E2m1, ClampsAtTheLargest) {
  for (const float value : {6.0F, 7.0F, 1e30F, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(to_e2m1(value).bits, 7) << value;
    EXPECT_EQ(to_e2m1(-value).bits, 15) << value;
  }
}

TEST(E2m1, NanBecomesTheLargestWithItsSign) {
  EXPECT_EQ(to_e2m1(std::bit_cast<float>(0x7fc00000u)).bits, 7);
  EXPECT_EQ(to_e2m1(std::bit_cast<float>(0xffc00000u)).bits, 15);
}

TEST(E2m1, SubnormalFloatsAreZero) {
  EXPECT_EQ(to_e2m1(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(to_e2m1(-std::numeric_limits<float>::denorm_min()).bits, 8);
}

}  // namespace
}  // namespace tidepool
