#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "base/check.h"

namespace tidepool {

/// A borrowed row-major matrix: `rows` rows of `cols` values, `stride` values from one row to the next.
/// The owner must outlive it.
template <typename T>
struct Span2d {
  T* data = nullptr;
  size_t rows = 0;
  size_t cols = 0;
  size_t stride = 0;

  Span2d() = default;
  Span2d(T* data_in, size_t rows_in, size_t cols_in) : Span2d(data_in, rows_in, cols_in, cols_in) {}
  Span2d(T* data_in, size_t rows_in, size_t cols_in, size_t stride_in)
      : data(data_in), rows(rows_in), cols(cols_in), stride(stride_in) {}
  /// A mutable view converts to a const one.
  template <typename U>
  requires(std::is_same_v<const U, T>) Span2d(const Span2d<U>& other)
      : Span2d(other.data, other.rows, other.cols, other.stride) {}

  [[nodiscard]] std::span<T> row(size_t index) const {
    TIDEPOOL_DCHECK(index < rows, "row out of range");
    return {data + index * stride, cols};
  }
  [[nodiscard]] Span2d row_range(size_t begin, size_t count) const {
    TIDEPOOL_DCHECK(begin + count <= rows, "row range out of range");
    return {data + begin * stride, count, cols, stride};
  }
  [[nodiscard]] Span2d col_range(size_t begin, size_t count) const {
    TIDEPOOL_DCHECK(begin + count <= cols, "column range out of range");
    return {data + begin, rows, count, stride};
  }
  [[nodiscard]] T& at(size_t row_index, size_t col_index) const { return row(row_index)[col_index]; }
};

}  // namespace tidepool
