#include "train/swiglu.h"

#include <limits>

#include "train/row_blocks.h"
#include "train/vector_math.h"

namespace tidepool {

namespace {

constexpr size_t kOperations = 30;

void swiglu_row(const Tape<float>& tape, std::span<const float> gate, std::span<const float> up, float weight,
                float limit, std::span<float> h) {
  tape.kernels().swiglu(gate.data(), up.data(), gate.size(), limit, weight, h.data());
}

void swiglu_row(const Tape<double>& /*tape*/, std::span<const double> gate, std::span<const double> up, double weight,
                double limit, std::span<double> h) {
  const double bound = limit > 0 ? limit : std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = std::min(gate[i], bound);
    h[i] = g * sigmoid(g) * std::clamp(up[i], -bound, bound) * weight;
  }
}

template <typename Real>
struct SwigluRow {
  std::span<const Real> gate;
  std::span<const Real> up;
  std::span<const Real> dh;
  Real weight;
  Real bound;
};

/// Adds to the gradients of a row; returns that of its weight.
template <typename Real>
Real swiglu_row_backward(const SwigluRow<Real>& row, std::span<Real> dgate, std::span<Real> dup) {
  Real dweight = 0;
  for (size_t i = 0; i < row.gate.size(); ++i) {
    const Real g = std::min(row.gate[i], row.bound);
    const Real u = std::clamp(row.up[i], -row.bound, row.bound);
    const Real s = sigmoid(g);
    const Real silu = g * s;
    dweight += row.dh[i] * silu * u;
    const Real weighted = row.dh[i] * row.weight;
    dgate[i] += row.gate[i] < row.bound ? weighted * u * (s + silu * (1 - s)) : Real{0};
    dup[i] += std::abs(row.up[i]) < row.bound ? weighted * silu : Real{0};
  }
  return dweight;
}

}  // namespace

template <typename Real>
Value<Real> swiglu(Tape<Real>& tape, const Value<Real>& gate, const Value<Real>& up, const Value<Real>& weight,
                   std::type_identity_t<Real> limit) {
  const Value<Real> h = tape.make(gate.rows(), gate.cols());
  for_row_blocks(tape, gate.rows(), kOperations * gate.cols(), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      swiglu_row(tape, gate.data.row(row), up.data.row(row), weight.data.at(row, 0), limit, h.data.row(row));
  });
  tape.on_backward([&tape, gate, up, weight, h, limit] {
    const Real bound = limit > 0 ? limit : std::numeric_limits<Real>::infinity();
    for_row_blocks(tape, gate.rows(), kOperations * gate.cols(), [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row) {
        const SwigluRow<Real> of_row = {gate.data.row(row), up.data.row(row), h.grad.row(row), weight.data.at(row, 0),
                                        bound};
        const Real dweight = swiglu_row_backward(of_row, gate.grad.row(row), up.grad.row(row));
        if (weight.wants_grad()) weight.grad.at(row, 0) += dweight;
      }
    });
  });
  return h;
}

template Value<float> swiglu(Tape<float>&, const Value<float>&, const Value<float>&, const Value<float>&, float);
template Value<double> swiglu(Tape<double>&, const Value<double>&, const Value<double>&, const Value<double>&, double);

}  // namespace tidepool
