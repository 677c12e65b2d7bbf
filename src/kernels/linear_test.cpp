#include <array>

#include "base/check.h"
#include "kernels/kernels_test_support.h"

namespace tidepool::kernels {
namespace {

using testing::OwnedMatrix;
using testing::Random;

constexpr MatrixFormat kMatrixFormats[] = {MatrixFormat::kFp8Tile32, MatrixFormat::kFp4Block32, MatrixFormat::kBf16,
                                           MatrixFormat::kFloat32};

class Linear : public testing::EveryTable {};
INSTANTIATE_TEST_SUITE_P(Kernels, Linear, ::testing::ValuesIn(testing::linear_tables()), testing::table_name);

/// sum_i |w_i x_i|, by asking the reference for |W| |x|, with the signs taken off codes and activations.
std::vector<float> magnitudes(OwnedMatrix matrix, std::vector<float> x, size_t rows) {
  const auto clear = [&](size_t step, size_t offset, std::byte mask) {
    for (size_t i = offset; i < matrix.data.size(); i += step)
      matrix.data[i] &= mask;
  };
  switch (matrix.view.format) {
    case MatrixFormat::kFp8Tile32: clear(1, 0, std::byte{0x7f}); break;
    case MatrixFormat::kFp4Block32: clear(1, 0, std::byte{0x77}); break;
    case MatrixFormat::kBf16: clear(2, 1, std::byte{0x7f}); break;
    case MatrixFormat::kFloat32: clear(4, 3, std::byte{0x7f}); break;
  }
  matrix.view.data = matrix.data.data();
  matrix.view.scales = matrix.scales.data();
  for (float& v : x)
    v = std::fabs(v);
  return testing::run_linear(reference_kernels(), matrix.view, x, rows);
}

void expect_like_reference(const KernelTable& table, const OwnedMatrix& matrix, const std::vector<float>& x,
                           size_t rows) {
  const std::vector<float> expected = testing::run_linear(reference_kernels(), matrix.view, x, rows);
  const std::vector<float> actual = testing::run_linear(table, matrix.view, x, rows);
  const std::vector<float> scale = magnitudes(matrix, x, rows);
  // Any order of n binary32 additions is within n * 2^-24 * sum |w x| of the exact sum (products are rounded once
  // more); both sides may be off, so twice that. In practice the error grows like the root of n: a tenth of the bound
  // is met.
  const float tolerance = 0.2F * static_cast<float>(matrix.view.in + 2) * 0x1p-24F;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_LE(std::fabs(actual[i] - expected[i]), tolerance * scale[i] + 0x1p-148F)
        << "row " << i / matrix.view.out << " output " << i % matrix.view.out << ": " << actual[i] << " for "
        << expected[i];
  }
}

/// One output of weights 1.
OwnedMatrix matrix_of_ones(MatrixFormat format, size_t in) {
  OwnedMatrix matrix;
  matrix.data.resize(matrix_row_bytes(format, in));
  const auto fill = [&](auto one) {
    for (size_t i = 0; i < matrix.data.size(); i += sizeof one)
      std::memcpy(matrix.data.data() + i, &one, sizeof one);
  };
  switch (format) {
    case MatrixFormat::kFp8Tile32: fill(std::byte{0x38}); break;
    case MatrixFormat::kFp4Block32: fill(std::byte{0x22}); break;
    case MatrixFormat::kBf16: fill(to_bf16(1)); break;
    case MatrixFormat::kFloat32: fill(1.0F); break;
  }
  matrix.scales.assign(testing::scale_count(format, 1, in), 127);
  matrix.view = {.format = format, .out = 1, .in = in, .data = matrix.data.data(), .scales = matrix.scales.data()};
  return matrix;
}

bool multiplies_in_bf16(const KernelTable& table, MatrixFormat format) {
  return table.needs_bf16_inputs && format != MatrixFormat::kFloat32;
}

TEST_P(Linear, AgreesWithTheReferenceOnRaggedShapes) {
  Random random(1);
  for (const MatrixFormat format : kMatrixFormats) {
    const bool is_fp4 = format == MatrixFormat::kFp4Block32;
    for (const size_t in : {32U, 64U, 96U, 128U, 160U, 224U, 256U, 544U}) {
      for (const size_t out : {1U, 2U, 3U, 4U, 5U, 31U, 33U, 40U}) {
        // Tails of all kinds where the format has them.
        const size_t width = is_fp4 ? in : in - out % 32;
        const OwnedMatrix matrix = testing::random_matrix(random, format, out, width);
        for (const size_t rows : {0U, 1U, 2U, 3U, 5U, 17U}) {
          SCOPED_TRACE(::testing::Message() << "format " << static_cast<int>(format) << " out " << out << " in "
                                            << width << " rows " << rows);
          expect_like_reference(table(), matrix, testing::linear_inputs(table(), random, rows * width), rows);
        }
      }
    }
  }
}

TEST_P(Linear, AgreesWithTheReferenceOnWidthsThatDoNotFitThePackingBufferAtOnce) {
  Random random(2);
  for (const MatrixFormat format : kMatrixFormats) {
    const OwnedMatrix matrix = testing::random_matrix(random, format, 5, 20512);
    for (const size_t rows : {1U, 7U, 17U})
      expect_like_reference(table(), matrix, testing::linear_inputs(table(), random, rows * 20512), rows);
  }
}

TEST_P(Linear, ARowDoesNotDependOnItsNeighboursNorAnOutputOnTheRange) {
  Random random(3);
  for (const MatrixFormat format : kMatrixFormats) {
    constexpr size_t kOut = 75;
    constexpr size_t kIn = size_t{32} * 11;
    constexpr size_t kRows = 21;
    const OwnedMatrix matrix = testing::random_matrix(random, format, kOut, kIn);
    const std::vector<float> x = testing::linear_inputs(table(), random, kRows * kIn);
    const std::vector<float> whole = testing::run_linear(table(), matrix.view, x, kRows);
    for (size_t r = 0; r < kRows; ++r) {
      const std::vector<float> row(x.begin() + static_cast<ptrdiff_t>(r * kIn),
                                   x.begin() + static_cast<ptrdiff_t>((r + 1) * kIn));
      const std::vector<float> alone = testing::run_linear(table(), matrix.view, row, 1);
      for (size_t o = 0; o < kOut; ++o) {
        ASSERT_TRUE(testing::same_bits(alone[o], whole[r * kOut + o])) << "row " << r << " output " << o;
      }
    }
    for (const size_t rows : {1U, 3U, 21U}) {
      std::vector<float> parts(rows * kOut, -7.0F);
      size_t begin = 0;
      for (const size_t end : {1U, 4U, 33U, 34U, 64U, 75U}) {
        testing::linear_of(table(), format)({.weight = matrix.view,
                                             .x = x.data(),
                                             .x_stride = kIn,
                                             .rows = rows,
                                             .y = parts.data(),
                                             .y_stride = kOut,
                                             .out_begin = begin,
                                             .out_end = end});
        begin = end;
      }
      for (size_t i = 0; i < parts.size(); ++i)
        ASSERT_TRUE(testing::same_bits(parts[i], whole[i])) << i;
    }
  }
}

/// In two parts, as two threads might; rows in all numbers of steps, and outputs that end within a vector.
TEST_P(Linear, RowsPackedBeforehandGiveTheSameBits) {
  if (table().packed_bytes == nullptr) return;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  Random random(6);
  for (const MatrixFormat format : {MatrixFormat::kFp8Tile32, MatrixFormat::kFp4Block32, MatrixFormat::kBf16}) {
    constexpr size_t kOut = 53;
    constexpr size_t kIn = size_t{32} * 11;
    const OwnedMatrix matrix = testing::random_matrix(random, format, kOut, kIn);
    for (const size_t rows : {16U, 29U, 57U, 113U}) {
      const std::vector<float> x = testing::linear_inputs(table(), random, rows * kIn);
      const std::vector<float> expected = testing::run_linear(table(), matrix.view, x, rows);
      std::vector<Line> packed(table().packed_bytes(format, rows, kIn) / sizeof(Line) + 1);
      for (const size_t begin : {size_t{0}, rows / 3}) {
        table().pack_inputs({.format = format,
                             .x = x.data(),
                             .x_stride = kIn,
                             .in = kIn,
                             .rows = rows,
                             .begin = begin,
                             .end = begin == 0 ? rows / 3 : rows,
                             .packed = packed.front().bytes});
      }
      std::vector<float> y(rows * kOut);
      testing::linear_of(table(), format)({.weight = matrix.view,
                                           .x = x.data(),
                                           .x_stride = kIn,
                                           .rows = rows,
                                           .y = y.data(),
                                           .y_stride = kOut,
                                           .out_begin = 0,
                                           .out_end = kOut,
                                           .packed_x = packed.front().bytes});
      for (size_t i = 0; i < y.size(); ++i)
        ASSERT_TRUE(testing::same_bits(y[i], expected[i])) << "row " << i / kOut << " output " << i % kOut;
    }
  }
}

TEST_P(Linear, OnlyTheAskedOutputsAreWritten) {
  Random random(4);
  const OwnedMatrix matrix = testing::random_matrix(random, MatrixFormat::kFp4Block32, 40, 64);
  for (const size_t rows : {1U, 6U}) {
    const std::vector<float> x = testing::linear_inputs(table(), random, rows * 64);
    std::vector<float> y(rows * 48, 123.0F);
    table().linear_fp4({.weight = matrix.view,
                        .x = x.data(),
                        .x_stride = 64,
                        .rows = rows,
                        .y = y.data(),
                        .y_stride = 48,
                        .out_begin = 7,
                        .out_end = 12});
    for (size_t i = 0; i < y.size(); ++i)
      EXPECT_EQ(y[i] == 123.0F, i % 48 < 7 || i % 48 >= 12) << i;
  }
}

/// One weight of each code, at a column that moves, against x = 1 there and 0 elsewhere: y is the value of the code.
TEST_P(Linear, EveryFp8CodeHasItsValueInEveryLane) {
  constexpr size_t kIn = 160;
  for (size_t column = 0; column < kIn; column += 7) {
    OwnedMatrix matrix;
    matrix.data.assign(256 * kIn, std::byte{0});
    matrix.scales.assign(40, 127);
    matrix.view = {.format = MatrixFormat::kFp8Tile32,
                   .out = 256,
                   .in = kIn,
                   .data = matrix.data.data(),
                   .scales = matrix.scales.data()};
    for (size_t code = 0; code < 256; ++code)
      matrix.data[code * kIn + column] = static_cast<std::byte>(code);
    std::vector<float> x(4 * kIn, 0.0F);
    for (size_t r = 0; r < 4; ++r)
      x[r * kIn + column] = 1;
    for (const size_t rows : {1U, 4U}) {
      const std::vector<float> y = testing::run_linear(table(), matrix.view, x, rows);
      for (size_t i = 0; i < y.size(); ++i) {
        // The definition: (-1)^s (1 + m / 8) 2^(e - 7), subnormals m 2^-9, 0x7f NaN.
        const int code = static_cast<int>(i % 256);
        const int exponent = (code >> 3) & 15;
        const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(code & 7), -9)
                                              : std::ldexp(static_cast<float>(8 + (code & 7)), exponent - 10);
        const float expected = (code & 0x7f) == 0x7f ? std::nanf("") : code < 128 ? magnitude : -magnitude;
        ASSERT_TRUE(std::isnan(expected) ? std::isnan(y[i]) : y[i] == expected) << "code " << code << ": " << y[i];
      }
    }
  }
}

TEST_P(Linear, EveryFp4CodeHasItsValueInEveryLane) {
  constexpr float kValues[] = {0, .5F, 1, 1.5F, 2, 3, 4, 6, 0, -.5F, -1, -1.5F, -2, -3, -4, -6};
  constexpr size_t kIn = 160;
  for (size_t column = 0; column < kIn; ++column) {
    OwnedMatrix matrix;
    matrix.data.assign(16 * kIn / 2, std::byte{0});
    matrix.scales.assign(80, 127);
    matrix.view = {.format = MatrixFormat::kFp4Block32,
                   .out = 16,
                   .in = kIn,
                   .data = matrix.data.data(),
                   .scales = matrix.scales.data()};
    for (size_t code = 0; code < 16; ++code) {
      matrix.data[(code * kIn + column) / 2] = static_cast<std::byte>(column % 2 == 0 ? code : code << 4);
    }
    std::vector<float> x(kIn, 0.0F);
    x[column] = 1;
    const std::vector<float> y = testing::run_linear(table(), matrix.view, x, 1);
    for (size_t code = 0; code < 16; ++code)
      ASSERT_EQ(y[code], kValues[code]) << "column " << column;
  }
}

/// All 256 codes of the scale, on one weight of 1: 2^(code - 127), the first a subnormal, the last NaN.
TEST_P(Linear, EveryScaleCodeHasItsValue) {
  for (const MatrixFormat format : {MatrixFormat::kFp8Tile32, MatrixFormat::kFp4Block32}) {
    constexpr size_t kIn = size_t{32} * 256;
    OwnedMatrix matrix;
    const bool is_fp8 = format == MatrixFormat::kFp8Tile32;
    matrix.data.assign(matrix_row_bytes(format, kIn), is_fp8 ? std::byte{0x38} : std::byte{0x22});  // ones
    for (size_t code = 0; code < 256; ++code)
      matrix.scales.push_back(static_cast<uint8_t>(code));
    matrix.view = {.format = format, .out = 1, .in = kIn, .data = matrix.data.data(), .scales = matrix.scales.data()};
    // The NaN would spread to every sum, so it is looked at last and then taken away.
    std::vector<float> x(kIn, 0.0F);
    EXPECT_TRUE(std::isnan(testing::run_linear(table(), matrix.view, x, 1)[0]));
    EXPECT_TRUE(std::isnan(testing::run_linear(table(), matrix.view, std::vector<float>(4 * kIn, 1.0F), 4)[3]));
    matrix.scales[255] = 127;
    for (size_t code = 0; code < 255; ++code) {
      x[32 * code + 5] = 1;
      EXPECT_EQ(testing::run_linear(table(), matrix.view, x, 1)[0], std::ldexp(1.0F, static_cast<int>(code) - 127));
      x[32 * code + 5] = 0;
    }
  }
}

TEST_P(Linear, ANaNWeightMakesItsOwnOutputNaNAndNoOther) {
  Random random(5);
  OwnedMatrix matrix = testing::random_matrix(random, MatrixFormat::kFp8Tile32, 40, 96);
  matrix.data[11 * 96 + 95] = std::byte{0xff};
  for (const size_t rows : {1U, 5U}) {
    const std::vector<float> y = testing::run_linear(table(), matrix.view, std::vector<float>(rows * 96, 0.0F), rows);
    for (size_t i = 0; i < y.size(); ++i)
      EXPECT_EQ(std::isnan(y[i]), i % 40 == 11) << i;
  }
}

/// At the beginning of a row of weights, within it and in its tail; one row in the middle of few and of many.
TEST_P(Linear, ASpecialActivationIsInItsOwnRowAsInTheReferencesAndInNoOther) {
  Random random(7);
  constexpr size_t kOut = 9;
  constexpr size_t kIn = size_t{32} * 5;
  for (const MatrixFormat format : kMatrixFormats) {
    const OwnedMatrix matrix = testing::random_matrix(random, format, kOut, kIn);
    for (const size_t rows : {1U, 5U, 40U}) {
      const std::vector<float> ordinary = testing::linear_inputs(table(), random, rows * kIn);
      const std::vector<float> without = testing::run_linear(table(), matrix.view, ordinary, rows);
      const std::vector<float> scale = magnitudes(matrix, ordinary, rows);
      for (const float special : testing::kSpecialValues) {
        for (const size_t column : {size_t{0}, size_t{77}, kIn - 1}) {
          SCOPED_TRACE(::testing::Message() << "format " << static_cast<int>(format) << ", " << special << " at "
                                            << column << " of one of " << rows << " rows");
          const size_t row = rows / 2;
          std::vector<float> x = ordinary;
          x[row * kIn + column] = special;
          const std::vector<float> actual = testing::run_linear(table(), matrix.view, x, rows);
          testing::expect_same_kind_and_near(
              actual, testing::run_linear(reference_kernels(), matrix.view, x, rows),
              [&](size_t i) { return 0.2F * static_cast<float>(kIn + 2) * 0x1p-24F * scale[i]; });
          for (size_t i = 0; i < actual.size(); ++i) {
            if (i / kOut != row) {
              ASSERT_TRUE(testing::same_bits(actual[i], without[i])) << i;
            }
          }
        }
      }
    }
  }
}

TEST_P(Linear, ASpecialWeightIsInItsOwnOutputAsInTheReferencesAndInNoOther) {
  Random random(8);
  constexpr size_t kOut = 21;
  constexpr size_t kIn = 150;
  for (const MatrixFormat format : {MatrixFormat::kBf16, MatrixFormat::kFloat32}) {
    for (const float special : testing::kSpecialValues) {
      OwnedMatrix matrix = testing::random_matrix(random, format, kOut, kIn);
      const size_t place = 13 * kIn + 149;
      const Bf16 narrow = to_bf16(special);
      if (format == MatrixFormat::kBf16) std::memcpy(matrix.data.data() + 2 * place, &narrow, sizeof narrow);
      if (format == MatrixFormat::kFloat32) std::memcpy(matrix.data.data() + 4 * place, &special, sizeof special);
      for (const size_t rows : {1U, 5U, 40U}) {
        const std::vector<float> x = testing::linear_inputs(table(), random, rows * kIn);
        const std::vector<float> actual = testing::run_linear(table(), matrix.view, x, rows);
        testing::expect_same_kind_and_near(actual, testing::run_linear(reference_kernels(), matrix.view, x, rows),
                                           [](size_t) { return 0.2F * (kIn + 2) * 0x1p-24F * kIn; });
        for (size_t i = 0; i < actual.size(); ++i)
          EXPECT_EQ(std::isfinite(actual[i]), std::isfinite(special) || i % kOut != 13) << i;
      }
    }
  }
}

/// Multiples of 2^-133 are exact in bfloat16.
TEST_P(Linear, SubnormalActivationsAreFlushedOnlyByProductsInBf16) {
  for (const MatrixFormat format : kMatrixFormats) {
    const OwnedMatrix matrix = matrix_of_ones(format, 64);
    for (const size_t rows : {1U, 5U, 40U}) {
      std::vector<float> x(rows * 64, 0.0F);
      for (size_t r = 0; r < rows; ++r) {
        x[r * 64 + 3] = 0x1p-133F;
        x[r * 64 + 40] = 5 * 0x1p-133F;
      }
      const float expected = multiplies_in_bf16(table(), format) ? 0.0F : 6 * 0x1p-133F;
      EXPECT_EQ(testing::run_linear(table(), matrix.view, x, rows), std::vector<float>(rows, expected));
    }
  }
}

TEST_P(Linear, SubnormalWeightsAreFlushedOnlyByProductsInBf16) {
  for (const MatrixFormat format : {MatrixFormat::kBf16, MatrixFormat::kFloat32}) {
    OwnedMatrix matrix = matrix_of_ones(format, 64);
    const float weight = 0x1p-130F;
    const Bf16 narrow = to_bf16(weight);
    for (const size_t column : {size_t{5}, size_t{63}}) {
      if (format == MatrixFormat::kBf16) std::memcpy(matrix.data.data() + 2 * column, &narrow, sizeof narrow);
      if (format == MatrixFormat::kFloat32) std::memcpy(matrix.data.data() + 4 * column, &weight, sizeof weight);
    }
    for (const size_t rows : {1U, 5U, 40U}) {
      std::vector<float> x(rows * 64, 0.0F);
      for (size_t r = 0; r < rows; ++r) {
        x[r * 64 + 5] = 0x1p100F;
        x[r * 64 + 63] = 0x1p101F;
      }
      const float expected = multiplies_in_bf16(table(), format) ? 0.0F : 3 * 0x1p-30F;
      EXPECT_EQ(testing::run_linear(table(), matrix.view, x, rows), std::vector<float>(rows, expected));
    }
  }
}

TEST_P(Linear, NoRowsAndNoOutputsWriteNothing) {
  Random random(9);
  for (const MatrixFormat format : kMatrixFormats) {
    const OwnedMatrix matrix = testing::random_matrix(random, format, 40, 64);
    const std::vector<float> x = testing::linear_inputs(table(), random, size_t{20} * 64);
    for (const auto& [rows, begin, end] : {std::array<size_t, 3>{0, 0, 40}, {1, 7, 7}, {20, 40, 40}}) {
      std::vector<float> y(size_t{20} * 40, 7.0F);
      testing::linear_of(table(), format)({.weight = matrix.view,
                                           .x = x.data(),
                                           .x_stride = 64,
                                           .rows = rows,
                                           .y = y.data(),
                                           .y_stride = 40,
                                           .out_begin = begin,
                                           .out_end = end});
      EXPECT_EQ(y, std::vector<float>(y.size(), 7.0F)) << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace tidepool::kernels
