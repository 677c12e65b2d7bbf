#include "train/rope.h"

#include <algorithm>

#include "train/row_blocks.h"

namespace tidepool {

namespace {

/// Turns all rows of x by their angles, or (`sign` -1) back.
template <typename Real>
void rotate_rows(const Tape<Real>& tape, const Span2d<Real>& x, const Rotation<Real>& rotation, Real sign) {
  const RotationTable<Real>& table = *rotation.table;
  for_row_blocks(tape, x.rows, 4 * x.cols, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const std::span<const Real> cos = table.cos(rotation.positions[row]);
      const std::span<const Real> sin = table.sin(rotation.positions[row]);
      for (size_t head_end = rotation.head_width; head_end <= x.cols; head_end += rotation.head_width) {
        Real* pair = x.row(row).data() + head_end - 2 * table.pairs();
        for (size_t i = 0; i < table.pairs(); ++i, pair += 2) {
          const Real even = pair[0];
          const Real odd = pair[1];
          pair[0] = even * cos[i] - odd * (sign * sin[i]);
          pair[1] = even * (sign * sin[i]) + odd * cos[i];
        }
      }
    }
  });
}

}  // namespace

template <typename Real>
void RotationTable<Real>::extend(size_t count) {
  std::vector<float> cos(pairs());
  std::vector<float> sin(pairs());
  for (size_t position = cos_.size() / pairs(); position < count; ++position) {
    table_.angles(static_cast<int64_t>(position), cos, sin);
    cos_.insert(cos_.end(), cos.begin(), cos.end());
    sin_.insert(sin_.end(), sin.begin(), sin.end());
  }
}

template <typename Real>
void rotate_in_place(Tape<Real>& tape, const Value<Real>& x, const Rotation<Real>& rotation) {
  const Real sign = rotation.turn == Turn::kForth ? Real{1} : Real{-1};
  rotate_rows(tape, x.data, rotation, sign);
  tape.on_backward([&tape, x, rotation, sign] {
    rotate_rows(tape, x.data, rotation, -sign);
    if (x.wants_grad()) rotate_rows(tape, x.grad, rotation, -sign);
  });
}

template class RotationTable<float>;
template class RotationTable<double>;
template void rotate_in_place(Tape<float>&, const Value<float>&, const Rotation<float>&);
template void rotate_in_place(Tape<double>&, const Value<double>&, const Rotation<double>&);

}  // namespace tidepool
