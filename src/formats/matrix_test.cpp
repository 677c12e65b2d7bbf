#include "formats/matrix.h"

#include <gtest/gtest.h>

#include "formats/fp8.h"
#include "formats/golden_test_util.h"

namespace tidepool {
namespace {

std::vector<float> row_of(const MatrixView& matrix, size_t row) {
  std::vector<float> values(matrix.in);
  dequantise_row(matrix, row, values);
  return values;
}

TEST(Matrix, DequantisesFp4LikeTheGolden) {
  const GoldenCase golden("kernels");
  const std::vector<uint8_t> scales = golden.bytes("fp4_w.scale");
  const std::vector<float> expected = golden.floats("fp4_w.deq");
  const MatrixView matrix{MatrixFormat::kFp4Block32, 40, 96, golden.view("fp4_w.weight").data, scales.data()};
  for (size_t row = 0; row < 40; ++row) {
    const auto begin = expected.begin() + static_cast<ptrdiff_t>(row * 96);
    EXPECT_EQ(row_of(matrix, row), std::vector<float>(begin, begin + 96)) << row;
  }
}

TEST(Matrix, AnFp8ScaleBelongsToATileOf32Rows32Columns) {
  // 40 rows of 48 ones: four tiles with scales 1, 2, 4, 8, the ragged ones included.
  std::vector<std::byte> codes(size_t{40} * 48, static_cast<std::byte>(to_e4m3(1.0F).bits));
  const uint8_t scales[] = {127, 128, 129, 130};
  const MatrixView matrix{MatrixFormat::kFp8Tile32, 40, 48, codes.data(), scales};
  for (size_t row = 0; row < 40; ++row) {
    const std::vector<float> values = row_of(matrix, row);
    for (size_t col = 0; col < 48; ++col) {
      EXPECT_EQ(values[col], (row < 32 ? 1.0F : 4.0F) * (col < 32 ? 1.0F : 2.0F)) << row << ", " << col;
    }
  }
}

TEST(Matrix, WidensPlainNumbers) {
  const Bf16 halves[] = {to_bf16(1.5F), to_bf16(-2.0F), to_bf16(0.25F), to_bf16(3.0F)};
  const float floats[] = {0.1F, 0.2F, 0.3F, 0.4F};
  const MatrixView bf16{MatrixFormat::kBf16, 2, 2, reinterpret_cast<const std::byte*>(halves), nullptr};
  const MatrixView f32{MatrixFormat::kFloat32, 2, 2, reinterpret_cast<const std::byte*>(floats), nullptr};
  EXPECT_EQ(row_of(bf16, 1), (std::vector<float>{0.25F, 3.0F}));
  EXPECT_EQ(row_of(f32, 1), (std::vector<float>{0.3F, 0.4F}));
}

TEST(Matrix, RowsOfAnyFormatAreThoseOfTheWhole) {
  const GoldenCase golden("kernels");
  const std::vector<uint8_t> fp8_scales = golden.bytes("fp8_gemm.scale");
  const std::vector<uint8_t> fp4_scales = golden.bytes("fp4_gemm.scale");
  const MatrixView matrices[] = {
      {MatrixFormat::kFp8Tile32, 96, 160, golden.view("fp8_gemm.weight").data, fp8_scales.data()},
      {MatrixFormat::kFp4Block32, 48, 128, golden.view("fp4_gemm.weight").data, fp4_scales.data()},
      {MatrixFormat::kBf16, 10, 64, golden.view("router.w").data, nullptr},
      {MatrixFormat::kFloat32, 24, 256, golden.view("hc.fn").data, nullptr},
  };
  for (const MatrixView& matrix : matrices) {
    const size_t begin = matrix.format == MatrixFormat::kFp8Tile32 ? 32 : 3;
    const MatrixView part = matrix.rows(begin, 5);
    EXPECT_EQ(part.out, 5U);
    for (size_t row = 0; row < 5; ++row)
      EXPECT_EQ(row_of(part, row), row_of(matrix, begin + row));
    EXPECT_EQ(matrix.rows(matrix.format == MatrixFormat::kFp8Tile32 ? 0 : matrix.out, 0).out, 0U);
  }
}

TEST(Matrix, RowBytes) {
  EXPECT_EQ(matrix_row_bytes(MatrixFormat::kFp8Tile32, 5120), 5120U);
  EXPECT_EQ(matrix_row_bytes(MatrixFormat::kFp4Block32, 5120), 2560U);
  EXPECT_EQ(matrix_row_bytes(MatrixFormat::kBf16, 5120), 10240U);
  EXPECT_EQ(matrix_row_bytes(MatrixFormat::kFloat32, 20480), 81920U);
}

TEST(MatrixDeathTest, ChecksItsRows) {
  const std::byte codes[64 * 32] = {};
  const uint8_t scales[2] = {};
  const MatrixView matrix{MatrixFormat::kFp8Tile32, 64, 32, codes, scales};
  EXPECT_DEATH((void)matrix.rows(16, 1), "32-row tile");
  EXPECT_DEATH((void)matrix.rows(32, 33), "outside");
  std::vector<float> out(32);
  EXPECT_DEATH(dequantise_row(matrix, 64, out), "outside");
}

}  // namespace
}  // namespace tidepool
