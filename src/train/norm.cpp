#include "train/norm.h"

#include <cmath>

#include "train/row_blocks.h"

namespace tidepool {

namespace {

constexpr size_t kRowOperations = 8;  ///< for each value of a row, about

/// With n = x * s, s = (mean(x^2) + eps)^-1/2 and g = dy * weight:  dx = s * (g - n * mean(g * n)).
template <typename Real>
void add_input_gradient(std::span<const Real> x, std::span<const Real> weight, Real scale, std::span<const Real> dy,
                        std::span<Real> dx) {
  Real dot = 0;
  for (size_t i = 0; i < x.size(); ++i)
    dot += dy[i] * weight[i] * x[i];
  const Real along = dot * scale * scale / static_cast<Real>(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    dx[i] += scale * (dy[i] * weight[i] - x[i] * along);
}

}  // namespace

template <typename Real>
Value<Real> rms_norm(Tape<Real>& tape, const Value<Real>& x, const Value<Real>& weight,
                     std::type_identity_t<Real> eps) {
  const size_t cols = x.cols();
  const Value<Real> y = tape.make(x.rows(), cols);
  const std::span<Real> scales = tape.template keep<Real>(x.rows());
  for_row_blocks(tape, x.rows(), kRowOperations * cols, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const std::span<const Real> in = x.data.row(row);
      Real squares = 0;
      for (const Real value : in)
        squares += value * value;
      const Real scale = 1 / std::sqrt(squares / static_cast<Real>(cols) + eps);
      scales[row] = scale;
      const std::span<Real> out = y.data.row(row);
      for (size_t i = 0; i < cols; ++i)
        out[i] = in[i] * scale * weight.data.data[i];
    }
  });
  tape.on_backward([&tape, x, weight, y, scales] {
    if (x.wants_grad()) {
      for_row_blocks(tape, x.rows(), kRowOperations * x.cols(), [&](size_t begin, size_t end) {
        for (size_t row = begin; row < end; ++row)
          add_input_gradient<Real>(x.data.row(row), weight.data.row(0), scales[row], y.grad.row(row), x.grad.row(row));
      });
    }
    if (!weight.wants_grad()) return;
    for_column_blocks(tape, x.rows(), x.cols(), [&](size_t begin, size_t end) {
      for (size_t row = 0; row < x.rows(); ++row) {
        const Real* in = x.data.row(row).data();
        const Real* dy = y.grad.row(row).data();
        for (size_t i = begin; i < end; ++i)
          weight.grad.data[i] += dy[i] * in[i] * scales[row];
      }
    });
  });
  return y;
}

template Value<float> rms_norm(Tape<float>&, const Value<float>&, const Value<float>&, float);
template Value<double> rms_norm(Tape<double>&, const Value<double>&, const Value<double>&, double);

}  // namespace tidepool
