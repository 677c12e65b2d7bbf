#include "engine/sampler_random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>

namespace tidepool {
namespace {

using Block = std::array<uint32_t, 4>;

/// The known answers that the authors of the generator publish with it.
TEST(SamplerRandom, GivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

/// Bits 0xe169c58d'6627e8d5 of the first answer, less the lowest 11, over 2^53.
TEST(SamplerRandom, UnitIsTheTopBitsOfTheFirstTwoWords) {
  EXPECT_EQ(random_unit(0, 0), static_cast<double>(0xe169c58d6627e8d5ULL >> 11U) / 9007199254740992.0);
}

TEST(SamplerRandom, SeedAndIndexNameTheNumber) {
  EXPECT_EQ(random_unit(7, 3), random_unit(7, 3));
  EXPECT_NE(random_unit(7, 3), random_unit(7, 4));
  EXPECT_NE(random_unit(7, 3), random_unit(8, 3));
  EXPECT_NE(random_unit(uint64_t{1} << 32U, 0), random_unit(0, 0));
  EXPECT_NE(random_unit(0, uint64_t{1} << 32U), random_unit(0, 0));
}

/// The mean of n uniform numbers has deviation sqrt(1 / 12n) = 0.00065 for n = 200,000; four of them are allowed.
TEST(SamplerRandom, IsUniformInMean) {
  double sum = 0;
  constexpr int kCount = 200'000;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double value = random_unit(42, i);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    sum += value;
  }
  EXPECT_LT(std::abs(sum / kCount - 0.5), 0.0026);
}

}  // namespace
}  // namespace tidepool
