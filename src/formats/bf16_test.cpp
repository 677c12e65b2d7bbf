#include "formats/bf16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace tidepool {
namespace {

/// The nearer of the codes `low` and `low + 1` to `value` (ties to the even one), by comparing distances in binary64,
/// where both are exact. Past the largest finite code comes infinity, which stands for 2^128.
uint16_t nearest_of_two(double value, uint16_t low) {
  const double below = static_cast<double>(to_float(Bf16{low}));
  const double above = low == 0x7f7f ? std::ldexp(1.0, 128) : static_cast<double>(to_float(Bf16{uint16_t(low + 1)}));
  const double to_below = value - below;
  const double to_above = above - value;
  if (to_below == to_above) return low % 2 == 0 ? low : static_cast<uint16_t>(low + 1);
  return to_below < to_above ? low : static_cast<uint16_t>(low + 1);
}

TEST(Bf16, DecodesEveryCodeByItsFields) {
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const int exponent = static_cast<int>(code >> 7 & 0xff);
    const int mantissa = static_cast<int>(code & 0x7f);
    const float value = to_float(Bf16{static_cast<uint16_t>(code)});
    if (exponent == 255 && mantissa != 0) {
      ASSERT_TRUE(std::isnan(value)) << code;
      continue;
    }
    double expected = exponent == 0     ? std::ldexp(mantissa, -133)  // 2^-126 / 2^7
                      : exponent == 255 ? std::numeric_limits<double>::infinity()
                                        : std::ldexp(128 + mantissa, exponent - 134);
    if ((code & 0x8000) != 0) expected = -expected;
    ASSERT_EQ(static_cast<double>(value), expected) << code;
    ASSERT_EQ(std::signbit(value), (code & 0x8000) != 0) << code;
  }
}

TEST(Bf16, EncodesEveryCodeToItself) {
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const Bf16 value{static_cast<uint16_t>(code)};
    if (std::isnan(to_float(value))) {
      // Quiet, payload's upper bits kept.
      ASSERT_EQ(to_bf16(to_float(value)).bits, code | 0x40) << code;
    } else {
      ASSERT_EQ(to_bf16(to_float(value)), value) << code;
    }
  }
}

TEST(Bf16, RoundsToTheNearestAroundEveryMidpoint) {
  for (uint32_t code = 0; code <= 0x7f7f; ++code) {
    const auto low = static_cast<uint16_t>(code);
    const uint32_t midpoint = (code << 16) | 0x8000u;
    for (const uint32_t bits : {midpoint - 1, midpoint, midpoint + 1, (code << 16) + 1, (code << 16) | 0xffffu}) {
      const auto value = std::bit_cast<float>(bits);
      const uint16_t expected = nearest_of_two(static_cast<double>(value), low);
      ASSERT_EQ(to_bf16(value).bits, expected) << bits;
      ASSERT_EQ(to_bf16(-value).bits, expected | 0x8000) << bits;
    }
  }
}

TEST(Bf16, OverflowsToInfinity) {
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::lowest()).bits, 0xff80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::infinity()).bits, 0x7f80);
}

TEST(Bf16, KeepsEveryKindOfNan) {
  // The smallest payload would vanish in a plain shift and read as infinity.
  for (const uint32_t bits : {0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const Bf16 code = to_bf16(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(to_float(code))) << bits;
    EXPECT_EQ(code.bits >> 15, bits >> 31) << bits;
  }
}

TEST(Bf16, RoundTripKeepsWhatFits) {
  EXPECT_EQ(round_bf16(1.0F), 1.0F);
  EXPECT_EQ(round_bf16(1.0F + 0x1p-8F), 1.0F);                // tie, to even
  EXPECT_EQ(round_bf16(1.0F + 3 * 0x1p-8F), 1.0F + 0x1p-6F);  // tie, to even, upwards
}

}  // namespace
}  // namespace tidepool
