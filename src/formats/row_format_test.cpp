#include "formats/row_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "formats/golden_test_util.h"

namespace tidepool {
namespace {

struct GoldenRows {
  RowFormat format;
  const char* prefix;
  const char* codes;
  size_t block;
};

/// -0 and +0 are one value to the goldens: turns the code of -0 into that of +0, nibble by nibble or byte by byte.
std::vector<uint8_t> without_negative_zero(std::vector<uint8_t> codes, RowFormat format) {
  for (uint8_t& byte : codes) {
    if (format == RowFormat::kFp8Block32) {
      if (byte == 0x80) byte = 0;
      continue;
    }
    if ((byte & 0x0f) == 0x08) byte &= 0xf0;
    if ((byte & 0xf0) == 0x80) byte &= 0x0f;
  }
  return codes;
}

std::vector<uint8_t> slice(const std::vector<uint8_t>& bytes, size_t begin, size_t count) {
  return {bytes.begin() + static_cast<ptrdiff_t>(begin), bytes.begin() + static_cast<ptrdiff_t>(begin + count)};
}

std::vector<std::byte> pack(RowFormat format, std::span<const float> values) {
  std::vector<std::byte> row(row_bytes(format, values.size()));
  pack_row(format, values, row);
  return row;
}

std::vector<float> unpack(RowFormat format, std::span<const std::byte> row, size_t width) {
  std::vector<float> values(width);
  unpack_row(format, row, values);
  return values;
}

class RowFormatGolden : public testing::TestWithParam<GoldenRows> {};

TEST_P(RowFormatGolden, PacksAndUnpacksExactly) {
  const GoldenRows& param = GetParam();
  const GoldenCase golden("kernels");
  const std::string prefix = param.prefix;
  const std::vector<float> x = golden.floats(prefix + ".x");
  const std::vector<float> deq = golden.floats(prefix + ".deq");
  const std::vector<uint8_t> codes = golden.bytes(prefix + "." + param.codes);
  const std::vector<uint8_t> scales = golden.bytes(prefix + ".scale");
  const size_t rows = 16;
  const size_t width = x.size() / rows;
  const size_t row_codes = codes.size() / rows;
  const size_t row_scales = width / param.block;
  for (size_t row = 0; row < rows; ++row) {
    const std::span<const float> values(x.data() + row * width, width);
    const std::vector<std::byte> packed = pack(param.format, values);
    ASSERT_EQ(packed.size(), row_codes + row_scales);
    std::vector<uint8_t> bytes(packed.size());
    std::memcpy(bytes.data(), packed.data(), packed.size());
    EXPECT_EQ(without_negative_zero(slice(bytes, 0, row_codes), param.format),
              without_negative_zero(slice(codes, row * row_codes, row_codes), param.format))
        << "codes of row " << row;
    EXPECT_EQ(slice(bytes, row_codes, row_scales), slice(scales, row * row_scales, row_scales))
        << "scales of row " << row;
    EXPECT_EQ(unpack(param.format, packed, width),
              std::vector<float>(deq.begin() + static_cast<ptrdiff_t>(row * width),
                                 deq.begin() + static_cast<ptrdiff_t>((row + 1) * width)))
        << "values of row " << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, RowFormatGolden,
                         testing::Values(GoldenRows{RowFormat::kFp8Block32, "fp8_act", "q", 32},
                                         GoldenRows{RowFormat::kFp4Block32, "fp4_act32", "packed", 32},
                                         GoldenRows{RowFormat::kFp4Block16, "fp4_act16", "packed", 16}),
                         [](const auto& instance) { return std::string(instance.param.prefix); });

TEST(RowFormat, TakesTheBytesOfTheAccounting) {
  EXPECT_EQ(row_bytes(RowFormat::kFp8Block32, 512), 528U);  // 512 + 512/32
  EXPECT_EQ(row_bytes(RowFormat::kFp4Block16, 512), 288U);  // 512/2 + 512/16
  EXPECT_EQ(row_bytes(RowFormat::kFp4Block32, 128), 68U);   // 128/2 + 128/32
  EXPECT_EQ(row_bytes(RowFormat::kFloat32, 512), 2048U);
  EXPECT_EQ(row_bytes(RowFormat::kFp8Block32, 0), 0U);
}

class RowFormatEach : public testing::TestWithParam<RowFormat> {};

TEST_P(RowFormatEach, PackingWhatWasUnpackedChangesNothing) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::normal_distribution<float> normal(0.0F, std::ldexp(1.0F, static_cast<int>(random() % 20) - 10));
    std::vector<float> values(96);
    for (float& value : values)
      value = normal(random);
    // Below 2^-6 the E4M3 scales of the 16-blocks stand so far apart that a block's largest value need not get the
    // code of 6, and a second pass may choose another scale. Every block gets a value that keeps its scale above.
    for (size_t i = 0; i < values.size(); i += 16)
      values[i] = std::max(values[i], 6 * 0x1p-6F);
    const std::vector<float> once = unpack(GetParam(), pack(GetParam(), values), values.size());
    EXPECT_EQ(unpack(GetParam(), pack(GetParam(), once), once.size()), once) << "round " << round;
  }
}

TEST_P(RowFormatEach, ZerosStayZeros) {
  const std::vector<float> zeros(64, 0.0F);
  EXPECT_EQ(unpack(GetParam(), pack(GetParam(), zeros), 64), zeros);
}

TEST_P(RowFormatEach, ABlockWithANanOrAnInfinityReadsAsNanAndOthersAsThemselves) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(64, 6.0F);
    values[40] = bad;
    const std::vector<float> back = unpack(GetParam(), pack(GetParam(), values), 64);
    EXPECT_EQ(back[0], 6.0F);
    EXPECT_FALSE(std::isfinite(back[40])) << bad;
    EXPECT_EQ(back[31], 6.0F);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RowFormatEach,
                         testing::Values(RowFormat::kFp8Block32, RowFormat::kFp4Block16, RowFormat::kFp4Block32,
                                         RowFormat::kFloat32));

TEST(RowFormat, EvenElementsLieInTheLowNibble) {
  std::vector<float> values(32, 0.0F);
  values[0] = 6.0F;   // scale 1, code 7
  values[1] = -0.5F;  // code 9
  const std::vector<std::byte> row = pack(RowFormat::kFp4Block32, values);
  EXPECT_EQ(row[0], std::byte{0x97});
  EXPECT_EQ(row[16], std::byte{127});
}

TEST(RowFormat, LargeGlobalEntriesSaturate) {
  // The largest scale is 448, so values end at 448 * 6 = 2688.
  std::vector<float> values(16, 0.0F);
  values[3] = 10000.0F;
  EXPECT_EQ(unpack(RowFormat::kFp4Block16, pack(RowFormat::kFp4Block16, values), 16)[3], 2688.0F);
}

TEST(RowFormatDeathTest, RefusesRaggedWidths) {
  EXPECT_DEATH((void)row_bytes(RowFormat::kFp8Block32, 33), "multiple of its block");
}

}  // namespace
}  // namespace tidepool
