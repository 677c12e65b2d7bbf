#include "train/embedding.h"

#include "base/check.h"
#include "train/row_blocks.h"

namespace tidepool {

template <typename Real>
Value<Real> embedding(Tape<Real>& tape, const Value<Real>& table, std::span<const int32_t> ids) {
  const Value<Real> y = tape.make(ids.size(), table.cols());
  const std::span<size_t> rows = tape.template keep<size_t>(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    rows[i] = static_cast<size_t>(ids[i]);
    TIDEPOOL_CHECK(rows[i] < table.rows(), "token ids are checked where they come in");
    std::ranges::copy(table.data.row(rows[i]), y.data.row(i).begin());
  }
  if (!table.wants_grad()) return y;
  tape.on_backward([&tape, table, y, rows] {
    // Several tokens may add to one row: a thread has some columns, and all tokens in order.
    for_column_blocks(tape, rows.size(), table.cols(), [&](size_t begin, size_t end) {
      for (size_t i = 0; i < rows.size(); ++i) {
        const Real* dy = y.grad.row(i).data();
        Real* row = table.grad.row(rows[i]).data();
        for (size_t c = begin; c < end; ++c)
          row[c] += dy[c];
      }
    });
  });
  return y;
}

template Value<float> embedding(Tape<float>&, const Value<float>&, std::span<const int32_t>);
template Value<double> embedding(Tape<double>&, const Value<double>&, std::span<const int32_t>);

}  // namespace tidepool
