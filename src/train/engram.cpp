#include "train/engram.h"

#include <fmt/format.h>

#include "base/check.h"
#include "train/row_blocks.h"
#include "train/vector_math.h"
#include "train/weight_packer.h"

namespace tidepool {

namespace {

/// The table rows of each row, side by side, [rows, columns * head_dim], in the numbers of their format where wanted.
template <typename Real>
Value<Real> gather_table_rows(Tape<Real>& tape, const Qat& qat, const Parameter<Real>& table, const EngramRows& rows) {
  const size_t width = table.value.cols();
  const size_t count = rows.table_rows.size() / rows.columns;
  const Value<Real> y = tape.make(count, rows.columns * width);
  const std::span<size_t> places = tape.template keep<size_t>(rows.table_rows.size());
  std::ranges::transform(rows.table_rows, places.begin(), [&](int64_t row) { return static_cast<size_t>(row); });
  for_row_blocks(tape, count, 4 * y.cols(), [&](size_t begin, size_t end) {
    for (size_t i = begin * rows.columns; i < end * rows.columns; ++i) {
      TIDEPOOL_DCHECK(places[i] < table.value.rows(), "a hash beyond its table");
      const Span2d<Real> to(&y.data.at(i / rows.columns, i % rows.columns * width), 1, width);
      if (qat.weights) {
        round_weight<Real>(table.format, table.value.data.row_range(places[i], 1), to, 0, 1);
      } else {
        std::ranges::copy(table.value.data.row(places[i]), to.row(0).begin());
      }
    }
  });
  tape.on_backward([&tape, value = table.value, y, places, columns = rows.columns, width] {
    // Each column has a part of the table to itself: a thread takes a column, and its tokens in order.
    for_row_blocks(tape, columns, y.rows() * width, [&](size_t begin, size_t end) {
      for (size_t column = begin; column < end; ++column) {
        for (size_t row = 0; row < y.rows(); ++row)
          add_scaled<Real>(value.grad.row(places[row * columns + column]), 1,
                           y.grad.row(row).subspan(column * width, width));
      }
    });
  });
  return y;
}

/// What the gate of one stream of one row is made of:
///   z = c sum(h q k key),  c = d^-1/2 a b,  a = (mean h^2 + eps)^-1/2,  b = (mean key^2 + eps)^-1/2,
///   gate = sigmoid(sign(z) sqrt(max(|z|, 1e-6))).
template <typename Real>
struct Gate {
  Real h_scale;    ///< a
  Real key_scale;  ///< b
  Real z;
  Real value;
};

constexpr double kLeastDot = 1e-6F;

template <typename Real>
Gate<Real> gate_of(std::span<const Real> h, std::span<const Real> key, std::span<const Real> weight, Real eps) {
  const auto width = static_cast<Real>(h.size());
  Real along = 0;
  for (size_t i = 0; i < h.size(); ++i)
    along += h[i] * weight[i] * key[i];
  Gate<Real> gate;
  gate.h_scale = 1 / std::sqrt(dot(h, h) / width + eps);
  gate.key_scale = 1 / std::sqrt(dot(key, key) / width + eps);
  gate.z = along * gate.h_scale * gate.key_scale / std::sqrt(width);
  const Real root = std::sqrt(std::max(std::abs(gate.z), static_cast<Real>(kLeastDot)));
  const Real sign = gate.z > 0 ? Real{1} : (gate.z < 0 ? Real{-1} : Real{0});
  gate.value = sigmoid(sign * root);
  return gate;
}

/// d gate / d z: sigmoid' / (2 sqrt|z|), and 0 where |z| is held at its least.
template <typename Real>
Real gate_slope(const Gate<Real>& gate) {
  if (std::abs(gate.z) <= static_cast<Real>(kLeastDot)) return 0;
  return gate.value * (1 - gate.value) / (2 * std::sqrt(std::abs(gate.z)));
}

/// What the way back works on.
template <typename Real>
struct GateState {
  Value<Real> stream;
  Value<Real> keys_value;  ///< [rows, (streams + 1) * d]
  Value<Real> q_weight;
  Value<Real> k_weight;
  Value<Real> out;
  Span2d<Real> weights;           ///< q * k, [streams, d]
  std::span<Gate<Real>> gates;    ///< [rows, streams]
  std::span<const uint8_t> dead;  ///< one per row, or empty

  [[nodiscard]] size_t streams() const { return weights.rows; }
  [[nodiscard]] size_t width() const { return weights.cols; }
  [[nodiscard]] bool is_dead(size_t row) const { return !dead.empty() && dead[row] != 0; }
  [[nodiscard]] Gate<Real>& gate(size_t row, size_t j) const { return gates[row * streams() + j]; }
  /// Part `j` of a row: a stream, a key, or (j = streams) the value.
  [[nodiscard]] std::span<Real> part(const Span2d<Real>& matrix, size_t row, size_t j) const {
    return matrix.row(row).subspan(j * width(), width());
  }
};

template <typename Real>
void add_row(const GateState<Real>& state, size_t row, Real eps) {
  std::ranges::copy(state.stream.data.row(row), state.out.data.row(row).begin());
  if (state.is_dead(row)) return;
  for (size_t j = 0; j < state.streams(); ++j) {
    Gate<Real>& gate = state.gate(row, j);
    gate = gate_of<Real>(state.part(state.stream.data, row, j), state.part(state.keys_value.data, row, j),
                         state.weights.row(j), eps);
    add_scaled<Real>(state.part(state.out.data, row, j), gate.value,
                     state.part(state.keys_value.data, row, state.streams()));
  }
}

/// With s = dz c:  dh = s q k key - dz z a^2 h / d,  and likewise for the key.
template <typename Real>
void add_row_backward(const GateState<Real>& state, size_t row) {
  if (state.stream.wants_grad()) add_scaled<Real>(state.stream.grad.row(row), 1, state.out.grad.row(row));
  if (state.is_dead(row)) return;
  const auto width = static_cast<Real>(state.width());
  const std::span<const Real> value = state.part(state.keys_value.data, row, state.streams());
  for (size_t j = 0; j < state.streams(); ++j) {
    Gate<Real>& gate = state.gate(row, j);
    const std::span<const Real> dy = state.part(state.out.grad, row, j);
    add_scaled<Real>(state.part(state.keys_value.grad, row, state.streams()), gate.value, dy);
    const Real dz = dot<Real>(dy, value) * gate_slope(gate);
    const Real scale = dz * gate.h_scale * gate.key_scale / std::sqrt(width);
    const std::span<const Real> h = state.part(state.stream.data, row, j);
    const std::span<const Real> key = state.part(state.keys_value.data, row, j);
    const std::span<Real> dkey = state.part(state.keys_value.grad, row, j);
    const std::span<const Real> weight = state.weights.row(j);
    const Real h_along = dz * gate.z * gate.h_scale * gate.h_scale / width;
    const Real key_along = dz * gate.z * gate.key_scale * gate.key_scale / width;
    for (size_t i = 0; i < key.size(); ++i)
      dkey[i] += scale * weight[i] * h[i] - key_along * key[i];
    if (state.stream.wants_grad()) {
      const std::span<Real> dh = state.part(state.stream.grad, row, j);
      for (size_t i = 0; i < h.size(); ++i)
        dh[i] += scale * weight[i] * key[i] - h_along * h[i];
    }
    gate.value = scale;  // what the weights' gradients need; the rest is not read again
  }
}

/// dq = sum over rows of s h key k, and likewise for k.
template <typename Real>
void add_weight_gradients(Tape<Real>& tape, const GateState<Real>& state) {
  for (size_t j = 0; j < state.streams(); ++j) {
    for_column_blocks(tape, 4 * state.stream.rows(), state.width(), [&](size_t begin, size_t end) {
      for (size_t row = 0; row < state.stream.rows(); ++row) {
        if (state.is_dead(row)) continue;
        const std::span<const Real> h = state.part(state.stream.data, row, j);
        const std::span<const Real> key = state.part(state.keys_value.data, row, j);
        for (size_t i = begin; i < end; ++i) {
          const Real product = state.gate(row, j).value * h[i] * key[i];
          state.q_weight.grad.at(j, i) += product * state.k_weight.data.at(j, i);
          state.k_weight.grad.at(j, i) += product * state.q_weight.data.at(j, i);
        }
      }
    });
  }
}

template <typename Real>
Value<Real> add_gated_value(Tape<Real>& tape, const GateState<Real>& state, Real eps) {
  const size_t rows = state.stream.rows();
  constexpr size_t kOperations = 8;
  for_row_blocks(tape, rows, kOperations * state.stream.cols(), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      add_row(state, row, eps);
  });
  tape.on_backward([&tape, state, rows] {
    for_row_blocks(tape, rows, 2 * kOperations * state.stream.cols(), [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row)
        add_row_backward(state, row);
    });
    add_weight_gradients(tape, state);
  });
  return state.out;
}

}  // namespace

template <typename Real>
EngramParameters<Real> bind_engram(const ParameterSet<Real>& parameters, size_t layer) {
  const std::string prefix = fmt::format("layers.{}.engram.", layer);
  return {&parameters.get(prefix + "embed.weight"), &parameters.get(prefix + "wkv.weight"),
          &parameters.get(prefix + "q_weight"), &parameters.get(prefix + "k_weight")};
}

EngramRows hash_rows(const EngramHash& hash, size_t slot, std::span<const InputToken> tokens,
                     std::span<const SampleRows> samples) {
  EngramRows rows;
  rows.columns = hash.columns();
  rows.table_rows.resize(tokens.size() * rows.columns);
  rows.is_dead.resize(tokens.size());
  for (const SampleRows& sample : samples) {
    const std::span<const InputToken> own = tokens.subspan(sample.begin, sample.count);
    for (size_t i = 0; i < sample.count; ++i) {
      hash.rows(slot, own, static_cast<int64_t>(i),
                std::span(rows.table_rows).subspan((sample.begin + i) * rows.columns, rows.columns));
      rows.is_dead[sample.begin + i] = own[i].is_image ? 1 : 0;
    }
  }
  return rows;
}

template <typename Real>
Value<Real> engram(Tape<Real>& tape, const Qat& qat, const EngramParameters<Real>& parameters, const EngramRows& rows,
                   const Value<Real>& stream, std::type_identity_t<Real> eps) {
  const Value<Real> table_rows = gather_table_rows(tape, qat, *parameters.table, rows);
  const Value<Real> q_weight = quantised(tape, qat, *parameters.q_weight);
  const Value<Real> k_weight = quantised(tape, qat, *parameters.k_weight);
  const size_t streams = q_weight.rows();
  const std::span<uint8_t> dead = tape.template keep<uint8_t>(rows.is_dead.size());
  std::ranges::copy(rows.is_dead, dead.begin());
  const GateState<Real> state = {stream,
                                 linear(tape, qat, table_rows, *parameters.wkv),
                                 q_weight,
                                 k_weight,
                                 tape.make(stream.rows(), stream.cols()),
                                 tape.make_constant(streams, q_weight.cols()).data,
                                 tape.template keep<Gate<Real>>(stream.rows() * streams),
                                 dead};
  for (size_t j = 0; j < streams; ++j)
    std::ranges::transform(q_weight.data.row(j), k_weight.data.row(j), state.weights.row(j).begin(), std::multiplies{});
  return add_gated_value(tape, state, eps);
}

#define TIDEPOOL_FOR_REAL(Real)                                                                          \
  template EngramParameters<Real> bind_engram(const ParameterSet<Real>&, size_t);                        \
  template Value<Real> engram(Tape<Real>&, const Qat&, const EngramParameters<Real>&, const EngramRows&, \
                              const Value<Real>&, Real)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
