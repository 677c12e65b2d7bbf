#pragma once

#include "train/fake_quant.h"
#include "train/tape.h"

namespace tidepool {

/// Single-pass hyper-connections over n residual streams, as the engine has them (model/hyper_connection.h):
///   X' = B X + C F(A_prev X),  (A, B, C) = H(X). (docs/model.md 2.6)
/// Streams of a row lie one after the other: X is [rows, n * d].
struct HyperConnectionShape {
  size_t streams = 0;     ///< n
  size_t iterations = 0;  ///< of Sinkhorn's normalisation
  double eps = 0;         ///< of the sigmoid and these iterations
  double norm_eps = 0;    ///< of the RMS over the flattened streams
};

/// The parameters of one sub-block.
template <typename Real>
struct HyperConnectionParameters {
  Value<Real> fn;     ///< F [2n + n * n, n * d]
  Value<Real> base;   ///< [1, 2n + n * n]
  Value<Real> scale;  ///< [1, 3]: of pre, post, comb
};

/// The mix of one sub-block.
template <typename Real>
struct HyperConnection {
  Value<Real> pre;   ///< A [rows, n], for the next sub-block
  Value<Real> post;  ///< C [rows, n]
  Value<Real> comb;  ///< B [rows, n * n]: stream j goes to stream k with comb[j][k]
};

/// H(X). Its derivatives go back through all iterations.
template <typename Real>
[[nodiscard]] HyperConnection<Real> hyper_connection_mix(Tape<Real>& tape, const HyperConnectionShape& shape,
                                                         const HyperConnectionParameters<Real>& parameters,
                                                         const Value<Real>& stream);

/// x [rows, d] in each of the streams.
template <typename Real>
[[nodiscard]] Value<Real> spread_streams(Tape<Real>& tape, const Value<Real>& x, size_t streams);

/// The first A: stream 0 alone. [rows, n], without gradient.
template <typename Real>
[[nodiscard]] Value<Real> first_mix(Tape<Real>& tape, size_t rows, size_t streams);

/// A X, [rows, d].
template <typename Real>
[[nodiscard]] Value<Real> collapse_streams(Tape<Real>& tape, const Value<Real>& stream, const Value<Real>& pre);

/// B X + C y, [rows, n * d].
template <typename Real>
[[nodiscard]] Value<Real> expand_streams(Tape<Real>& tape, const HyperConnection<Real>& mix, const Value<Real>& stream,
                                         const Value<Real>& y);

/// The mean over the streams, [rows, d]: what a draft head taps.
template <typename Real>
[[nodiscard]] Value<Real> mean_streams(Tape<Real>& tape, const Value<Real>& stream, size_t streams);

#define TIDEPOOL_FOR_REAL(Real)                                                                              \
  extern template HyperConnection<Real> hyper_connection_mix(                                                \
      Tape<Real>&, const HyperConnectionShape&, const HyperConnectionParameters<Real>&, const Value<Real>&); \
  extern template Value<Real> spread_streams(Tape<Real>&, const Value<Real>&, size_t);                       \
  extern template Value<Real> first_mix(Tape<Real>&, size_t, size_t);                                        \
  extern template Value<Real> collapse_streams(Tape<Real>&, const Value<Real>&, const Value<Real>&);         \
  extern template Value<Real> expand_streams(Tape<Real>&, const HyperConnection<Real>&, const Value<Real>&,  \
                                             const Value<Real>&);                                            \
  extern template Value<Real> mean_streams(Tape<Real>&, const Value<Real>&, size_t)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
