#pragma once

#include "train/selected_entries.h"
#include "train/tape.h"

namespace tidepool {

/// Rows [begin, end) of a matrix.
struct RowRange {
  size_t begin = 0;
  size_t end = 0;
};

/// What sparse attention reads: for each query row a run of local rows and a choice of entries, under one softmax with
/// a sink for each head. A row is key and value at once, for all heads. (docs/model.md 2.3)
template <typename Real>
struct SparseAttention {
  Value<Real> q;                                     ///< [rows, heads * width], turned
  Value<Real> local;                                 ///< [any, width], turned
  std::span<const RowRange> local_rows;              ///< [rows], rows of `local`; lives as long as the pass
  Value<Real> entries;                               ///< [any, width], turned; without data where nothing is selected
  const SelectedEntries<Real>* selection = nullptr;  ///< of rows of `entries`; copied. Null for none
  Value<Real> sink;                                  ///< [1, heads]
};

/// softmax(q k / sqrt(width)) k, [rows, heads * width]. Memory is that of its operands and of one number a row and
/// head: going back, probabilities are computed again. Adds them to the selection's `attention`, where that has memory.
template <typename Real>
[[nodiscard]] Value<Real> sparse_attention(Tape<Real>& tape, const SparseAttention<Real>& attention);

extern template Value<float> sparse_attention(Tape<float>&, const SparseAttention<float>&);
extern template Value<double> sparse_attention(Tape<double>&, const SparseAttention<double>&);

}  // namespace tidepool
