#include "formats/fp8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "formats/golden_test_util.h"

namespace tidepool {
namespace {

/// The code of the nearest of all 127 finite magnitudes, ties to the even code, found by looking at every one; larger
/// values get the largest. The magnitudes come from the golden table.
class NearestE4m3 {
 public:
  NearestE4m3() : table_(GoldenCase("kernels").floats("table.e4m3")) {}

  [[nodiscard]] uint8_t operator()(float value) const {
    const double magnitude = std::fabs(static_cast<double>(value));
    uint8_t best = 0;
    for (uint8_t code = 1; code < 0x7f; ++code) {
      const double distance = std::fabs(static_cast<double>(table_[code]) - magnitude);
      const double best_distance = std::fabs(static_cast<double>(table_[best]) - magnitude);
      if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
    }
    return static_cast<uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
  }

  [[nodiscard]] float magnitude(uint8_t code) const { return table_[code]; }

 private:
  std::vector<float> table_;
};

TEST(E4m3, DecodesEveryCode) {
  const std::vector<float> expected = GoldenCase("kernels").floats("table.e4m3");
  ASSERT_EQ(expected.size(), 256U);
  for (size_t code = 0; code < 256; ++code) {
    const float value = to_float(E4m3{static_cast<uint8_t>(code)});
    EXPECT_TRUE(same_number(value, expected[code])) << code << ": " << value;
    if (std::isnan(value)) continue;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
  }
}

TEST(E4m3, EncodesEveryCodeToItself) {
  for (uint32_t code = 0; code < 256; ++code) {
    const E4m3 value{static_cast<uint8_t>(code)};
    EXPECT_EQ(to_e4m3(to_float(value)), value) << code;
  }
}

TEST(E4m3, RoundsToTheNearestAroundEveryMidpoint) {
  const NearestE4m3 nearest;
  for (uint8_t code = 0; code < 0x7e; ++code) {
    // Neighbours share a binade up to one bit, so their mean is exact.
    const float low = nearest.magnitude(code);
    const float high = nearest.magnitude(static_cast<uint8_t>(code + 1));
    const float midpoint = low + (high - low) / 2;
    for (const float value : {midpoint, std::nextafter(midpoint, low), std::nextafter(midpoint, high),
                              std::nextafter(low, high), std::nextafter(high, low)}) {
      EXPECT_EQ(to_e4m3(value).bits, nearest(value)) << value;
      EXPECT_EQ(to_e4m3(-value).bits, nearest(-value)) << -value;
    }
  }
}

TEST(E4m3, RoundsRandomValuesOfEveryMagnitude) {
  const NearestE4m3 nearest;
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    // Exponents from below half the smallest code to beyond the largest.
    const auto exponent = static_cast<uint32_t>(110 + random() % 30);
    const auto value = std::bit_cast<float>((static_cast<uint32_t>(random()) & 0x807fffffu) | (exponent << 23));
    ASSERT_EQ(to_e4m3(value).bits, nearest(value)) << value;
  }
}

TEST(E4m3, ClampsAtTheLargest) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {448.0F, std::nextafter(448.0F, infinity), 464.0F, 1e30F, infinity}) {
    EXPECT_EQ(to_e4m3(value).bits, 0x7e) << value;
    EXPECT_EQ(to_e4m3(-value).bits, 0xfe) << value;
  }
}

TEST(E4m3, KeepsNanAndItsSign) {
  EXPECT_EQ(to_e4m3(std::bit_cast<float>(0x7f800001u)).bits, 0x7f);
  EXPECT_EQ(to_e4m3(std::bit_cast<float>(0xffc00000u)).bits, 0xff);
}

TEST(E4m3, SubnormalFloatsAreZero) {
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(to_e4m3(-std::numeric_limits<float>::denorm_min()).bits, 0x80);
  EXPECT_EQ(to_e4m3(0x1p-10F).bits, 0);  // half the smallest code: tie, to even
}

TEST(E8m0, DecodesEveryCode) {
  const std::vector<float> expected = GoldenCase("kernels").floats("table.e8m0");
  ASSERT_EQ(expected.size(), 255U);
  for (size_t code = 0; code < 255; ++code) {
    EXPECT_EQ(to_float(E8m0{static_cast<uint8_t>(code)}), expected[code]) << code;
  }
  EXPECT_TRUE(std::isnan(to_float(E8m0{255})));
}

TEST(E8m0, CeilsToThePowerOfTwoAtOrAbove) {
  for (uint32_t code = 1; code < 254; ++code) {
    const float power = to_float(E8m0{static_cast<uint8_t>(code)});
    const auto above = std::bit_cast<float>(std::bit_cast<uint32_t>(power) + 1);
    EXPECT_EQ(ceil_to_e8m0(power).bits, code);
    EXPECT_EQ(ceil_to_e8m0(above).bits, code + 1);
    EXPECT_EQ(ceil_to_e8m0(power * 1.5F).bits, code + 1);
  }
}

TEST(E8m0, SubnormalsCeilToTheSmallestNormal) {
  EXPECT_EQ(ceil_to_e8m0(std::numeric_limits<float>::denorm_min()).bits, 1);
  EXPECT_EQ(ceil_to_e8m0(0x1p-127F).bits, 1);
}

}  // namespace
}  // namespace tidepool
