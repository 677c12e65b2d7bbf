#include "train/weight_packer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "formats/matrix.h"
#include "train/gradient_check.h"

namespace tidepool {
namespace {

constexpr WeightFormat kWeightFormats[] = {WeightFormat::kFp8Tile32, WeightFormat::kFp8Row32, WeightFormat::kFp4Block32,
                                           WeightFormat::kBf16, WeightFormat::kFloat32};

/// A packed tensor, read by the engine's own reader of matrices. Engram rows have scales of their own; read row by row
/// they are FP8 tiles of one row.
std::vector<float> read(WeightFormat format, const PackedWeight& packed, size_t rows, size_t cols) {
  std::vector<float> values(rows * cols);
  const auto* scales = reinterpret_cast<const uint8_t*>(packed.scales.data());
  const auto row_of = [&](size_t row) { return std::span(values).subspan(row * cols, cols); };
  if (format == WeightFormat::kFp8Row32) {
    for (size_t row = 0; row < rows; ++row)
      dequantise_row({MatrixFormat::kFp8Tile32, 1, cols, packed.codes.data() + row * cols, scales + row * cols / 32}, 0,
                     row_of(row));
    return values;
  }
  const MatrixFormat stored = format == WeightFormat::kFp8Tile32    ? MatrixFormat::kFp8Tile32
                              : format == WeightFormat::kFp4Block32 ? MatrixFormat::kFp4Block32
                              : format == WeightFormat::kBf16       ? MatrixFormat::kBf16
                                                                    : MatrixFormat::kFloat32;
  const MatrixView view{stored, rows, cols, packed.codes.data(), scales};
  for (size_t row = 0; row < rows; ++row)
    dequantise_row(view, row, row_of(row));
  return values;
}

/// Values over many binades, whole tiles of zeros and of tiny values among them, and negative zeros.
std::vector<float> varied_values(size_t rows, size_t cols) {
  TestRandom random(5);
  std::vector<float> values(rows * cols);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t tile = i / cols / 32 * (cols / 32) + i % cols / 32;
    const double binade = std::ldexp(1.0, static_cast<int>(random.below(12)) - 8);
    values[i] = static_cast<float>(random.value() * binade * (tile == 1 ? 0 : tile == 2 ? 1e-30 : 1));
  }
  values[0] = -0.0F;
  return values;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i])) << i << ": " << a[i] << ", " << b[i];
}

std::vector<float> rounded(WeightFormat format, const std::vector<float>& values, size_t rows, size_t cols) {
  std::vector<float> result(values.size());
  round_weight<float>(format, {values.data(), rows, cols}, {result.data(), rows, cols}, 0, rows);
  return result;
}

TEST(WeightPacker, ReadingWhatWasPackedIsFakeQuantisationBitForBit) {
  constexpr size_t kRows = 70;  // not whole tiles
  constexpr size_t kCols = 96;
  const std::vector<float> values = varied_values(kRows, kCols);
  for (const WeightFormat format : kWeightFormats) {
    const PackedWeight packed = pack_weight(format, {values.data(), kRows, kCols});
    expect_same_bits(rounded(format, values, kRows, kCols), read(format, packed, kRows, kCols));
  }
}

TEST(WeightPacker, RoundedValuesPackToThemselvesAndToTheSameBytes) {
  constexpr size_t kRows = 64;
  constexpr size_t kCols = 96;
  for (const WeightFormat format : kWeightFormats) {
    const std::vector<float> once = rounded(format, varied_values(kRows, kCols), kRows, kCols);
    expect_same_bits(rounded(format, once, kRows, kCols), once);
    const PackedWeight packed = pack_weight(format, {once.data(), kRows, kCols});
    const std::vector<float> values = read(format, packed, kRows, kCols);
    expect_same_bits(values, once);
    const PackedWeight again = pack_weight(format, {values.data(), kRows, kCols});
    EXPECT_EQ(again.codes, packed.codes);
    EXPECT_EQ(again.scales, packed.scales);
  }
}

TEST(WeightPacker, ScalesAreTheSmallestThatSaturateNothing) {
  EXPECT_EQ(to_float(weight_scale(WeightFormat::kFp8Tile32, 448.0F)), 1.0F);
  EXPECT_EQ(to_float(weight_scale(WeightFormat::kFp8Tile32, 449.0F)), 2.0F);
  EXPECT_EQ(to_float(weight_scale(WeightFormat::kFp4Block32, 6.0F)), 1.0F);
  EXPECT_EQ(to_float(weight_scale(WeightFormat::kFp4Block32, 3.0F)), 0.5F);
  EXPECT_EQ(to_float(weight_scale(WeightFormat::kFp4Block32, 0.0F)), 0x1p-30F);
  EXPECT_TRUE(std::isnan(to_float(weight_scale(WeightFormat::kFp8Row32, NAN))));
}

TEST(WeightPacker, ATileWithANanIsNan) {
  std::vector<float> values(size_t{32} * 64, 1.0F);
  values[5] = NAN;
  const std::vector<float> result = rounded(WeightFormat::kFp8Tile32, values, 32, 64);
  EXPECT_TRUE(std::isnan(result[64]));
  EXPECT_EQ(result[32], 1.0F);
  const PackedWeight packed = pack_weight(WeightFormat::kFp8Tile32, {values.data(), 32, 64});
  EXPECT_TRUE(std::isnan(read(WeightFormat::kFp8Tile32, packed, 32, 64)[64]));
}

}  // namespace
}  // namespace tidepool
