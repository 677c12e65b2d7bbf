#pragma once

#include <cstdint>
#include <span>

#include "train/tape.h"

namespace tidepool {

/// Rows of a matrix that several others read: [begin, begin + count), or those of a list, ascending.
struct RowKeys {
  const uint32_t* list = nullptr;
  size_t begin = 0;
  size_t count = 0;

  [[nodiscard]] size_t operator[](size_t index) const { return list != nullptr ? list[index] : begin + index; }
  /// Place of the first key that is at least `row`.
  [[nodiscard]] size_t lower_bound(size_t row) const;
};

/// What one reader adds to the gradients of its keys: key j gets sum_c weights[j, c] left[c, :].
template <typename Real>
struct RowSpread {
  RowKeys keys;
  const Real* weights = nullptr;  ///< [keys.count, gathered_stride(columns)]
  const Real* left = nullptr;     ///< [columns, width]
};

/// Adds what all readers give to the rows of `gradient`. Threads own ranges of rows, and each takes the readers in
/// their order: a row's sum is the same for any number of threads.
template <typename Real>
void spread_rows(const Tape<Real>& tape, std::span<const RowSpread<Real>> readers, size_t columns,
                 const Span2d<Real>& gradient);

extern template void spread_rows(const Tape<float>&, std::span<const RowSpread<float>>, size_t, const Span2d<float>&);
extern template void spread_rows(const Tape<double>&, std::span<const RowSpread<double>>, size_t,
                                 const Span2d<double>&);

}  // namespace tidepool
