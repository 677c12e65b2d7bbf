#pragma once

#include <xmmintrin.h>

#include <algorithm>
#include <cstddef>

namespace tidepool::kernels {
namespace {

/// Rows of four values become columns: to[i * to_stride + j] = from[j * from_stride + i]. Of `row_count` below four the
/// last one stands for those that are not there. Every processor with vectors of eight or sixteen lanes has these of
/// four.
__attribute__((always_inline)) inline void turn_square(const float* from, size_t from_stride, size_t row_count,
                                                       float* to, size_t to_stride) {
  __m128 rows[4];
  for (size_t i = 0; i < 4; ++i)
    rows[i] = _mm_loadu_ps(from + std::min(i, row_count - 1) * from_stride);
  _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]);
  for (size_t i = 0; i < 4; ++i)
    _mm_storeu_ps(to + i * to_stride, rows[i]);
}

}  // namespace
}  // namespace tidepool::kernels
