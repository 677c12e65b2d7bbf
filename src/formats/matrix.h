#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tidepool {

/// How a weight matrix lies in the checkpoint.
enum class MatrixFormat : uint8_t {
  kFp8Tile32,   ///< E4M3 [out, in]; E8M0 scales [ceil(out/32), ceil(in/32)], one per 32x32 tile
  kFp4Block32,  ///< E2M1 pairs [out, in/2]; E8M0 scales [out, in/32], one per row and 32 columns
  kBf16,        ///< bfloat16 [out, in], no scales
  kFloat32,     ///< binary32 [out, in], no scales
};

/// A borrowed weight matrix in its released layout, usually inside a file mapping (whose owner must outlive this).
/// It maps an `in`-vector to an `out`-vector: y = W x.
struct MatrixView {
  MatrixFormat format = MatrixFormat::kBf16;
  size_t out = 0;
  size_t in = 0;
  const std::byte* data = nullptr;
  const uint8_t* scales = nullptr;  ///< null for formats without scales

  /// Rows [begin, begin + count) as a matrix of their own. For kFp8Tile32 `begin` must be a multiple of 32.
  [[nodiscard]] MatrixView rows(size_t begin, size_t count) const;
};

/// Bytes of one row of codes, without scales.
[[nodiscard]] size_t matrix_row_bytes(MatrixFormat format, size_t in);

/// Row `row` as numbers, exact (every released weight fits binary32, and bfloat16 too). The slow reference of the
/// kernels; `out` has `matrix.in` values.
void dequantise_row(const MatrixView& matrix, size_t row, std::span<float> out);

}  // namespace tidepool
