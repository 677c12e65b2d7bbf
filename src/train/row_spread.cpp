#include "train/row_spread.h"

#include <algorithm>
#include <vector>

#include "kernels/gathered.h"

namespace tidepool {

namespace {

/// Ranges for each thread: enough that they end at about the same time, few enough that most readers have more than a
/// tile of keys in each.
constexpr size_t kRangesPerThread = 3;

}  // namespace

size_t RowKeys::lower_bound(size_t row) const {
  if (list != nullptr) return static_cast<size_t>(std::lower_bound(list, list + count, row) - list);
  return std::clamp(row, begin, begin + count) - begin;
}

template <typename Real>
void spread_rows(const Tape<Real>& tape, std::span<const RowSpread<Real>> readers, size_t columns,
                 const Span2d<Real>& gradient) {
  size_t first = gradient.rows;
  size_t end = 0;
  size_t most = 0;
  for (const RowSpread<Real>& reader : readers) {
    if (reader.keys.count == 0) continue;
    first = std::min(first, reader.keys[0]);
    end = std::max(end, reader.keys[reader.keys.count - 1] + 1);
    most = std::max(most, reader.keys.count);
  }
  if (first >= end) return;
  const kernels::GatheredKernels<Real>& kernels = kernels::gathered_kernels<Real>();
  const size_t stride = kernels::gathered_stride(columns);
  const size_t ranges = std::min(kRangesPerThread * tape.pool().thread_count(), end - first);
  const size_t length = (end - first + ranges - 1) / ranges;
  tape.pool().run(ranges, [&](size_t range, size_t) {
    std::vector<Real*> rows(most);
    for (const RowSpread<Real>& reader : readers) {
      const size_t from = reader.keys.lower_bound(first + range * length);
      const size_t to = reader.keys.lower_bound(first + (range + 1) * length);
      for (size_t j = from; j < to; ++j)
        rows[j - from] = gradient.row(reader.keys[j]).data();
      kernels.spread(rows.data(), to - from, gradient.cols, reader.weights + from * stride, columns, reader.left);
    }
  });
}

template void spread_rows(const Tape<float>&, std::span<const RowSpread<float>>, size_t, const Span2d<float>&);
template void spread_rows(const Tape<double>&, std::span<const RowSpread<double>>, size_t, const Span2d<double>&);

}  // namespace tidepool
