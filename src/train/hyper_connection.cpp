#include "train/hyper_connection.h"

#include "train/matmul.h"
#include "train/row_blocks.h"
#include "train/sinkhorn_normalise.h"
#include "train/vector_math.h"

namespace tidepool {

namespace {

/// What the way back remembers of H, and works in.
template <typename Real>
struct MixState {
  HyperConnectionShape shape;
  HyperConnectionParameters<Real> parameters;
  Value<Real> stream;
  HyperConnection<Real> mix;
  Span2d<Real> products;    ///< F X [rows, 2n + n * n]
  std::span<Real> inverse;  ///< 1 / RMS of each row
};

/// Which of the three scales coefficient `i` has.
size_t scale_index(size_t i, size_t n) {
  return i < n ? 0 : i < 2 * n ? 1 : 2;
}

template <typename Real>
Real argument(const MixState<Real>& state, size_t row, size_t i) {
  const Real m = state.products.at(row, i) * state.inverse[row];
  return m * state.parameters.scale.data.at(0, scale_index(i, state.shape.streams)) +
         state.parameters.base.data.at(0, i);
}

template <typename Real>
SinkhornNormaliser<Real> make_normaliser(const MixState<Real>& state) {
  return {state.shape.streams, state.shape.iterations, static_cast<Real>(state.shape.eps)};
}

template <typename Real>
void mix_row(const MixState<Real>& state, size_t row, SinkhornNormaliser<Real>& normaliser) {
  const size_t n = state.shape.streams;
  const std::span<const Real> x = state.stream.data.row(row);
  state.inverse[row] = 1 / std::sqrt(dot(x, x) / static_cast<Real>(x.size()) + static_cast<Real>(state.shape.norm_eps));
  for (size_t j = 0; j < n; ++j) {
    state.mix.pre.data.at(row, j) = sigmoid(argument(state, row, j)) + static_cast<Real>(state.shape.eps);
    state.mix.post.data.at(row, j) = 2 * sigmoid(argument(state, row, n + j));
  }
  const std::span<Real> comb = state.mix.comb.data.row(row);
  for (size_t i = 0; i < comb.size(); ++i)
    comb[i] = argument(state, row, 2 * n + i);
  normaliser.forward(comb);
}

/// Gradients of the arguments of the sigmoids and of the normaliser.
template <typename Real>
void argument_gradients(const MixState<Real>& state, size_t row, SinkhornNormaliser<Real>& normaliser,
                        std::span<Real> out) {
  const size_t n = state.shape.streams;
  for (size_t j = 0; j < n; ++j) {
    const Real pre = state.mix.pre.data.at(row, j) - static_cast<Real>(state.shape.eps);
    const Real half_post = state.mix.post.data.at(row, j) / 2;
    out[j] = state.mix.pre.grad.at(row, j) * pre * (1 - pre);
    out[n + j] = state.mix.post.grad.at(row, j) * 2 * half_post * (1 - half_post);
  }
  const std::span<Real> comb = out.subspan(2 * n);
  for (size_t i = 0; i < comb.size(); ++i)
    comb[i] = argument(state, row, 2 * n + i);
  normaliser.forward(comb);  // its states are not kept for each row
  std::ranges::copy(state.mix.comb.grad.row(row), comb.begin());
  normaliser.backward(comb);
}

/// With m = p s, s = (mean(X^2) + eps)^-1/2: gradients of p (in place of those of the arguments) and of X through s.
template <typename Real>
void product_gradients(const MixState<Real>& state, size_t row, std::span<Real> grads) {
  const Real inverse = state.inverse[row];
  Real along = 0;
  for (size_t i = 0; i < grads.size(); ++i) {
    grads[i] *= state.parameters.scale.data.at(0, scale_index(i, state.shape.streams));
    along += grads[i] * state.products.at(row, i);
    grads[i] *= inverse;
  }
  if (!state.stream.wants_grad()) return;
  const std::span<const Real> x = state.stream.data.row(row);
  add_scaled<Real>(state.stream.grad.row(row), -along * inverse * inverse * inverse / static_cast<Real>(x.size()), x);
}

/// Sums over all rows, in order: a few dozen numbers.
template <typename Real>
void add_base_and_scale(const MixState<Real>& state, const Span2d<Real>& grads) {
  const size_t n = state.shape.streams;
  for (size_t row = 0; row < grads.rows; ++row) {
    for (size_t i = 0; i < grads.cols; ++i) {
      state.parameters.base.grad.at(0, i) += grads.at(row, i);
      state.parameters.scale.grad.at(0, scale_index(i, n)) +=
          grads.at(row, i) * state.products.at(row, i) * state.inverse[row];
    }
  }
}

template <typename Real>
size_t mix_operations(const MixState<Real>& state) {
  const size_t n = state.shape.streams;
  return 2 * state.stream.cols() + state.shape.iterations * 4 * n * n;
}

template <typename Real>
void mix_backward(Tape<Real>& tape, const MixState<Real>& state) {
  const Span2d<Real> grads = tape.make_constant(state.products.rows, state.products.cols).data;
  for_row_blocks(tape, grads.rows, mix_operations(state), [&](size_t begin, size_t end) {
    SinkhornNormaliser<Real> normaliser = make_normaliser(state);
    for (size_t row = begin; row < end; ++row)
      argument_gradients(state, row, normaliser, grads.row(row));
  });
  add_base_and_scale(state, grads);
  for_row_blocks(tape, grads.rows, mix_operations(state), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      product_gradients(state, row, grads.row(row));
  });
  const Value<Real>& fn = state.parameters.fn;
  if (state.stream.wants_grad()) matmul(tape, {grads, fn.data, state.stream.grad, Into::kAdd});
  if (fn.wants_grad()) matmul(tape, {transposed(grads), state.stream.data, fn.grad, Into::kAdd});
}

}  // namespace

template <typename Real>
HyperConnection<Real> hyper_connection_mix(Tape<Real>& tape, const HyperConnectionShape& shape,
                                           const HyperConnectionParameters<Real>& parameters,
                                           const Value<Real>& stream) {
  const size_t n = shape.streams;
  const size_t rows = stream.rows();
  const MixState<Real> state = {shape,
                                parameters,
                                stream,
                                {tape.make(rows, n), tape.make(rows, n), tape.make(rows, n * n)},
                                tape.make_constant(rows, 2 * n + n * n).data,
                                tape.template keep<Real>(rows)};
  matmul(tape, {stream.data, transposed(parameters.fn.data), state.products});
  for_row_blocks(tape, rows, mix_operations(state), [&](size_t begin, size_t end) {
    SinkhornNormaliser<Real> normaliser = make_normaliser(state);
    for (size_t row = begin; row < end; ++row)
      mix_row(state, row, normaliser);
  });
  tape.on_backward([&tape, state] { mix_backward(tape, state); });
  return state.mix;
}

template <typename Real>
Value<Real> spread_streams(Tape<Real>& tape, const Value<Real>& x, size_t streams) {
  const size_t d = x.cols();
  const Value<Real> y = tape.make(x.rows(), streams * d);
  for_row_blocks(tape, x.rows(), streams * d, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      for (size_t j = 0; j < streams; ++j)
        std::ranges::copy(x.data.row(row), y.data.row(row).subspan(j * d).begin());
    }
  });
  tape.on_backward([&tape, x, y, streams, d] {
    if (!x.wants_grad()) return;
    for_row_blocks(tape, x.rows(), streams * d, [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row) {
        for (size_t j = 0; j < streams; ++j)
          add_scaled<Real>(x.grad.row(row), 1, y.grad.row(row).subspan(j * d, d));
      }
    });
  });
  return y;
}

template <typename Real>
Value<Real> first_mix(Tape<Real>& tape, size_t rows, size_t streams) {
  const Value<Real> mix = tape.make_constant(rows, streams);
  for (size_t row = 0; row < rows; ++row) {
    std::ranges::fill(mix.data.row(row), Real{0});
    mix.data.at(row, 0) = 1;
  }
  return mix;
}

template <typename Real>
Value<Real> collapse_streams(Tape<Real>& tape, const Value<Real>& stream, const Value<Real>& pre) {
  const size_t n = pre.cols();
  const size_t d = stream.cols() / n;
  const Value<Real> y = tape.make(stream.rows(), d);
  for_row_blocks(tape, stream.rows(), 2 * stream.cols(), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      std::ranges::fill(y.data.row(row), Real{0});
      for (size_t j = 0; j < n; ++j)
        add_scaled<Real>(y.data.row(row), pre.data.at(row, j), stream.data.row(row).subspan(j * d, d));
    }
  });
  tape.on_backward([&tape, stream, pre, y, n, d] {
    for_row_blocks(tape, stream.rows(), 4 * stream.cols(), [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row) {
        for (size_t j = 0; j < n; ++j) {
          if (pre.wants_grad())
            pre.grad.at(row, j) += dot<Real>(y.grad.row(row), stream.data.row(row).subspan(j * d, d));
          if (stream.wants_grad())
            add_scaled<Real>(stream.grad.row(row).subspan(j * d, d), pre.data.at(row, j), y.grad.row(row));
        }
      }
    });
  });
  return y;
}

namespace {

/// One row of X' = B X + C y.
template <typename Real>
void expand_row(const HyperConnection<Real>& mix, const Value<Real>& stream, const Value<Real>& y, size_t row,
                std::span<Real> out) {
  const size_t n = mix.post.cols();
  const size_t d = y.cols();
  for (size_t k = 0; k < n; ++k) {
    const std::span<Real> to = out.subspan(k * d, d);
    const Real post = mix.post.data.at(row, k);
    for (size_t i = 0; i < d; ++i)
      to[i] = post * y.data.row(row)[i];
    for (size_t j = 0; j < n; ++j)
      add_scaled<Real>(to, mix.comb.data.at(row, j * n + k), stream.data.row(row).subspan(j * d, d));
  }
}

template <typename Real>
void expand_row_backward(const HyperConnection<Real>& mix, const Value<Real>& stream, const Value<Real>& y, size_t row,
                         std::span<const Real> grad) {
  const size_t n = mix.post.cols();
  const size_t d = y.cols();
  for (size_t k = 0; k < n; ++k) {
    const std::span<const Real> from = grad.subspan(k * d, d);
    mix.post.grad.at(row, k) += dot<Real>(from, y.data.row(row));
    if (y.wants_grad()) add_scaled<Real>(y.grad.row(row), mix.post.data.at(row, k), from);
    for (size_t j = 0; j < n; ++j) {
      mix.comb.grad.at(row, j * n + k) += dot<Real>(from, stream.data.row(row).subspan(j * d, d));
      if (stream.wants_grad())
        add_scaled<Real>(stream.grad.row(row).subspan(j * d, d), mix.comb.data.at(row, j * n + k), from);
    }
  }
}

}  // namespace

template <typename Real>
Value<Real> expand_streams(Tape<Real>& tape, const HyperConnection<Real>& mix, const Value<Real>& stream,
                           const Value<Real>& y) {
  const Value<Real> out = tape.make(stream.rows(), stream.cols());
  const size_t operations = 2 * mix.post.cols() * stream.cols();
  for_row_blocks(tape, stream.rows(), operations, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      expand_row(mix, stream, y, row, out.data.row(row));
  });
  tape.on_backward([&tape, mix, stream, y, out, operations] {
    for_row_blocks(tape, stream.rows(), 2 * operations, [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row)
        expand_row_backward<Real>(mix, stream, y, row, out.grad.row(row));
    });
  });
  return out;
}

template <typename Real>
Value<Real> mean_streams(Tape<Real>& tape, const Value<Real>& stream, size_t streams) {
  const size_t d = stream.cols() / streams;
  const Value<Real> y = tape.make(stream.rows(), d);
  const Real share = Real{1} / static_cast<Real>(streams);
  for_row_blocks(tape, stream.rows(), stream.cols(), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      std::ranges::fill(y.data.row(row), Real{0});
      for (size_t j = 0; j < streams; ++j)
        add_scaled<Real>(y.data.row(row), 1, stream.data.row(row).subspan(j * d, d));
      for (Real& value : y.data.row(row))
        value *= share;
    }
  });
  tape.on_backward([&tape, stream, y, streams, d, share] {
    if (!stream.wants_grad()) return;
    for_row_blocks(tape, stream.rows(), stream.cols(), [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row) {
        for (size_t j = 0; j < streams; ++j)
          add_scaled<Real>(stream.grad.row(row).subspan(j * d, d), share, y.grad.row(row));
      }
    });
  });
  return y;
}

#define TIDEPOOL_FOR_REAL(Real)                                                                                    \
  template HyperConnection<Real> hyper_connection_mix(Tape<Real>&, const HyperConnectionShape&,                    \
                                                      const HyperConnectionParameters<Real>&, const Value<Real>&); \
  template Value<Real> spread_streams(Tape<Real>&, const Value<Real>&, size_t);                                    \
  template Value<Real> first_mix(Tape<Real>&, size_t, size_t);                                                     \
  template Value<Real> collapse_streams(Tape<Real>&, const Value<Real>&, const Value<Real>&);                      \
  template Value<Real> expand_streams(Tape<Real>&, const HyperConnection<Real>&, const Value<Real>&,               \
                                      const Value<Real>&);                                                         \
  template Value<Real> mean_streams(Tape<Real>&, const Value<Real>&, size_t)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
