#include "formats/matrix.h"

#include <cstring>

#include "base/check.h"
#include "formats/bf16.h"
#include "formats/fp4.h"
#include "formats/fp8.h"

namespace tidepool {
namespace {

constexpr size_t kTile = 32;

size_t scales_per_row(size_t in) {
  return (in + kTile - 1) / kTile;
}

void dequantise_fp8_row(const MatrixView& matrix, size_t row, std::span<float> out) {
  const std::byte* codes = matrix.data + row * matrix.in;
  const uint8_t* scales = matrix.scales + row / kTile * scales_per_row(matrix.in);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = to_float(E4m3{static_cast<uint8_t>(codes[i])}) * to_float(E8m0{scales[i / kTile]});
  }
}

void dequantise_fp4_row(const MatrixView& matrix, size_t row, std::span<float> out) {
  const std::byte* codes = matrix.data + row * (matrix.in / 2);
  const uint8_t* scales = matrix.scales + row * scales_per_row(matrix.in);
  for (size_t i = 0; i < out.size(); ++i) {
    const auto byte = static_cast<uint8_t>(codes[i / 2]);
    const auto code = static_cast<uint8_t>(i % 2 == 0 ? byte & 0x0fu : byte >> 4);
    out[i] = to_float(E2m1{code}) * to_float(E8m0{scales[i / kTile]});
  }
}

void widen_bf16_row(const MatrixView& matrix, size_t row, std::span<float> out) {
  const std::byte* values = matrix.data + row * matrix.in * sizeof(Bf16);
  for (size_t i = 0; i < out.size(); ++i) {
    Bf16 value;
    std::memcpy(&value, values + i * sizeof value, sizeof value);
    out[i] = to_float(value);
  }
}

}  // namespace

MatrixView MatrixView::rows(size_t begin, size_t count) const {
  TIDEPOOL_CHECK(begin <= out && count <= out - begin, "rows outside the matrix");
  MatrixView view = *this;
  view.out = count;
  view.data = data + begin * matrix_row_bytes(format, in);
  switch (format) {
    case MatrixFormat::kFp8Tile32:
      TIDEPOOL_CHECK(begin % kTile == 0, "rows of an FP8 matrix must begin on a 32-row tile");
      view.scales = scales + begin / kTile * scales_per_row(in);
      break;
    case MatrixFormat::kFp4Block32: view.scales = scales + begin * scales_per_row(in); break;
    case MatrixFormat::kBf16:
    case MatrixFormat::kFloat32: break;
  }
  return view;
}

size_t matrix_row_bytes(MatrixFormat format, size_t in) {
  switch (format) {
    case MatrixFormat::kFp8Tile32: return in;
    case MatrixFormat::kFp4Block32:
      TIDEPOOL_CHECK(in % kTile == 0, "an FP4 matrix has whole blocks of 32 columns");
      return in / 2;
    case MatrixFormat::kBf16: return in * sizeof(Bf16);
    case MatrixFormat::kFloat32: return in * sizeof(float);
  }
  TIDEPOOL_CHECK(false, "not a matrix format");
}

void dequantise_row(const MatrixView& matrix, size_t row, std::span<float> out) {
  TIDEPOOL_CHECK(row < matrix.out && out.size() == matrix.in, "row outside the matrix, or a buffer of another width");
  switch (matrix.format) {
    case MatrixFormat::kFp8Tile32: return dequantise_fp8_row(matrix, row, out);
    case MatrixFormat::kFp4Block32: return dequantise_fp4_row(matrix, row, out);
    case MatrixFormat::kBf16: return widen_bf16_row(matrix, row, out);
    case MatrixFormat::kFloat32: {
      const size_t bytes = matrix_row_bytes(matrix.format, matrix.in);
      if (bytes != 0) std::memcpy(out.data(), matrix.data + row * bytes, bytes);
      return;
    }
  }
}

}  // namespace tidepool
