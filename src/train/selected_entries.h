#pragma once

#include <cstdint>
#include <span>

#include "base/span2d.h"

namespace tidepool {

/// Rows of a matrix of entries that each query row reads, ascending. Its memory is the tape's.
template <typename Real>
struct SelectedEntries {
  Span2d<uint32_t> entries;    ///< [rows, most entries of a row]
  std::span<uint32_t> counts;  ///< entries of each row
  /// [rows, most entries of a row]: the probabilities that heads gave the entries, summed over heads and over the
  /// layers that read the selection. What the indexer is trained to foresee. Without data where nothing collects them.
  Span2d<Real> attention;

  [[nodiscard]] std::span<const uint32_t> of(size_t row) const { return entries.row(row).first(counts[row]); }
};

}  // namespace tidepool
