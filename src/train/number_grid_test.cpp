#include "train/number_grid.h"

#include <gtest/gtest.h>

#include <cmath>

#include "formats/fp4.h"
#include "formats/fp8.h"

namespace tidepool {
namespace {

/// Every sign, exponent and upper ten bits of mantissa, with the rest all zeros, one, and all ones: around every value
/// and every midpoint of a format of three bits.
template <typename Check>
void for_many_floats(const Check& check) {
  for (uint32_t upper = 0; upper < (1U << 19U); ++upper) {
    for (const uint32_t lower : {0U, 1U, 0x1fffU}) {
      const float value = std::bit_cast<float>(upper << 13U | lower);
      if (std::isfinite(value)) check(value);
    }
  }
}

TEST(NumberGrid, RoundsToE4m3AsItsCodesDo) {
  for_many_floats([](float value) {
    ASSERT_EQ(std::bit_cast<uint32_t>(round_to_e4m3(value)), std::bit_cast<uint32_t>(to_float(to_e4m3(value))))
        << value;
  });
}

TEST(NumberGrid, RoundsToE2m1AsItsCodesDo) {
  for_many_floats([](float value) {
    ASSERT_EQ(std::bit_cast<uint32_t>(round_to_e2m1(value)), std::bit_cast<uint32_t>(to_float(to_e2m1(value))))
        << value;
  });
}

TEST(NumberGrid, TheLargestMagnitudeOfWhatIsNotFiniteIsNan) {
  const float finite[] = {-3, 2, -0.0F};
  const float infinite[] = {-3, -INFINITY, 1};
  const float nan[] = {NAN, 1, 2};
  EXPECT_EQ(largest_magnitude(finite), 3.0F);
  EXPECT_TRUE(std::isnan(largest_magnitude(infinite)));
  EXPECT_TRUE(std::isnan(largest_magnitude(nan)));
}

}  // namespace
}  // namespace tidepool
