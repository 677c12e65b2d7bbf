#include "train/weight_packer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "formats/bf16.h"
#include "formats/fp4.h"
#include "train/number_grid.h"

namespace tidepool {

namespace {

constexpr size_t kScaleBlock = 32;

/// Scales are at least 2^-30: nothing that was trained is smaller than 2^-40, and the kernels' products of bfloat16
/// stay far from its subnormals.
constexpr float kLeastScale = 0x1p-30F;

bool is_fp4(WeightFormat format) {
  return format == WeightFormat::kFp4Block32;
}

size_t parts(size_t count, size_t size) {
  return (count + size - 1) / size;
}

template <typename Real>
float tile_scale(WeightFormat format, Span2d<const Real> tile) {
  float largest = 0;
  for (size_t row = 0; row < tile.rows; ++row) {
    float values[kScaleBlock];
    std::ranges::transform(tile.row(row), values, [](Real value) { return static_cast<float>(value); });
    const float of_row = largest_magnitude({values, tile.cols});
    largest = of_row > largest || std::isnan(of_row) ? of_row : largest;
    if (std::isnan(largest)) break;
  }
  return to_float(weight_scale(format, largest));
}

template <typename Real>
Span2d<Real> tile_of(Span2d<Real> matrix, ScaleTile size, size_t row, size_t col) {
  return matrix.row_range(row, std::min(size.rows, matrix.rows - row))
      .col_range(col, std::min(size.cols, matrix.cols - col));
}

/// Codes of a tile; `codes` is where the matrix has its first.
void pack_tile(WeightFormat format, Span2d<const float> matrix, size_t row, size_t col, std::byte* codes,
               std::byte& scale_code) {
  const Span2d<const float> tile = tile_of(matrix, scale_tile(format), row, col);
  const float scale = tile_scale(format, tile);
  scale_code = static_cast<std::byte>(std::isnan(scale) ? uint8_t{0xff} : ceil_to_e8m0(scale).bits);
  for (size_t r = 0; r < tile.rows; ++r) {
    const size_t first = (row + r) * matrix.cols + col;
    for (size_t c = 0; c < tile.cols; ++c) {
      const float value = tile.at(r, c) / scale;
      if (!is_fp4(format)) {
        codes[first + c] = static_cast<std::byte>(to_e4m3(value).bits);
      } else {
        const unsigned shift = c % 2 == 0 ? 0 : 4;
        codes[(first + c) / 2] |= static_cast<std::byte>(to_e2m1(value).bits << shift);
      }
    }
  }
}

PackedWeight pack_scaled(WeightFormat format, Span2d<const float> values) {
  const ScaleTile size = scale_tile(format);
  TIDEPOOL_CHECK(format == WeightFormat::kFp8Tile32 || values.cols % size.cols == 0,
                 "columns that are no whole blocks");
  const size_t tile_cols = parts(values.cols, size.cols);
  PackedWeight packed;
  packed.codes.resize(values.rows * values.cols / (is_fp4(format) ? 2 : 1));
  packed.scales.resize(parts(values.rows, size.rows) * tile_cols);
  for (size_t row = 0; row < values.rows; row += size.rows) {
    for (size_t col = 0; col < values.cols; col += size.cols) {
      pack_tile(format, values, row, col, packed.codes.data(),
                packed.scales[row / size.rows * tile_cols + col / size.cols]);
    }
  }
  return packed;
}

template <typename T, typename Convert>
PackedWeight pack_plain(Span2d<const float> values, Convert convert) {
  PackedWeight packed;
  packed.codes.resize(values.rows * values.cols * sizeof(T));
  for (size_t row = 0; row < values.rows; ++row) {
    for (size_t col = 0; col < values.cols; ++col) {
      const T value = convert(values.at(row, col));
      std::memcpy(packed.codes.data() + (row * values.cols + col) * sizeof(T), &value, sizeof(T));
    }
  }
  return packed;
}

template <typename Real>
void round_tile(WeightFormat format, Span2d<const Real> tile, Span2d<Real> out) {
  const float scale = tile_scale(format, tile);
  const float inverse = 1 / scale;  // exact: a power of two
  for (size_t row = 0; row < tile.rows; ++row) {
    const Real* from = tile.row(row).data();
    Real* to = out.row(row).data();
    if (is_fp4(format)) {
      for (size_t col = 0; col < tile.cols; ++col)
        to[col] = static_cast<Real>(round_to_e2m1(static_cast<float>(from[col]) * inverse) * scale);
    } else {
      for (size_t col = 0; col < tile.cols; ++col)
        to[col] = static_cast<Real>(round_to_e4m3(static_cast<float>(from[col]) * inverse) * scale);
    }
  }
}

}  // namespace

ScaleTile scale_tile(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8Tile32: return {kScaleBlock, kScaleBlock};
    case WeightFormat::kFp8Row32:
    case WeightFormat::kFp4Block32: return {1, kScaleBlock};
    case WeightFormat::kBf16:
    case WeightFormat::kFloat32: return {};
  }
  return {};
}

E8m0 weight_scale(WeightFormat format, float largest) {
  if (std::isnan(largest)) return {0xff};
  return ceil_to_e8m0(std::max(largest / (is_fp4(format) ? kE2m1Max : kE4m3Max), kLeastScale));
}

PackedWeight pack_weight(WeightFormat format, Span2d<const float> values) {
  switch (format) {
    case WeightFormat::kFp8Tile32:
    case WeightFormat::kFp8Row32:
    case WeightFormat::kFp4Block32: return pack_scaled(format, values);
    case WeightFormat::kBf16: return pack_plain<Bf16>(values, [](float value) { return to_bf16(value); });
    case WeightFormat::kFloat32: return pack_plain<float>(values, [](float value) { return value; });
  }
  return {};
}

template <typename Real>
void round_weight(WeightFormat format, Span2d<const Real> values, Span2d<Real> out, size_t row_begin, size_t row_end) {
  const ScaleTile size = scale_tile(format);
  if (size.rows == 0) {
    for (size_t row = row_begin; row < row_end; ++row) {
      std::ranges::transform(values.row(row), out.row(row).begin(), [format](Real value) {
        const auto narrow = static_cast<float>(value);
        return static_cast<Real>(format == WeightFormat::kBf16 ? round_bf16(narrow) : narrow);
      });
    }
    return;
  }
  TIDEPOOL_CHECK(row_begin % size.rows == 0 && (row_end % size.rows == 0 || row_end == values.rows),
                 "rows that are no whole tiles");
  for (size_t row = row_begin; row < row_end; row += size.rows) {
    for (size_t col = 0; col < values.cols; col += size.cols)
      round_tile(format, tile_of(values, size, row, col), tile_of(out, size, row, col));
  }
}

template void round_weight(WeightFormat, Span2d<const float>, Span2d<float>, size_t, size_t);
template void round_weight(WeightFormat, Span2d<const double>, Span2d<double>, size_t, size_t);

}  // namespace tidepool
