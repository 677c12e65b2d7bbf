#pragma once

#include <span>

#include "model/forward_pass.h"
#include "model/math.h"
#include "model/weights.h"

namespace tidepool {

/// Single-pass manifold hyper-connections: n residual streams X in R^{n x d} a sub-block reads and writes through
///   X' = B X + C F(A_prev X),  (A, B, C) = H(X),
/// where A is used one sub-block late. (docs/model.md 2.6, docs/numerics.md)
struct HyperConnectionConfig {
  size_t streams = 0;  ///< n
  size_t hidden = 0;   ///< d
  int64_t sinkhorn_iterations = 0;
  float eps = 0;       ///< of the sigmoid and the Sinkhorn steps
  float norm_eps = 0;  ///< of the RMS over the flattened streams
};

/// From the raw products m = F flatten(X) rsqrt(mean(X^2) + eps) of one row [2n + n*n]:
///   pre = sigmoid(m * scale0 + base) + eps, post = 2 sigmoid(m * scale1 + base),
///   comb = Sinkhorn(row softmax(m * scale2 + base) + eps).
void split_mix(const HyperConnectionConfig& config, std::span<const float> products, const float* scale,
               const float* base, std::span<float> pre, std::span<float> post, std::span<float> comb);

/// What happens to the streams between two sub-blocks: X' = B X + C y of the one before, if there is one; then, if
/// there is one behind, its H(X') and its input A X', where A is the pass's pending mix, which becomes that of the
/// sub-block left.
struct StreamCrossing {
  const HyperConnectionMix* left = nullptr;
  Span2d<const float> y{};  ///< [rows, d]: what the sub-block left computed
  const HyperConnectionWeights* weights = nullptr;
  const HyperConnectionMix* entered = nullptr;  ///< make_mix; its numbers are written
  Span2d<float> x{};                            ///< [rows, d], written, with its rounding point
  bool has_own_mix = false;                     ///< the pending mix becomes that of the sub-block entered
};

/// All of it for a few rows at a time, so that the streams are read from memory once and written once: 2n + 2 vectors
/// of d a row, with y and x. (docs/model.md 2.6) Each row has the bits of the single steps below.
void cross_streams(const Math& math, const HyperConnectionConfig& config, const ForwardPass& pass,
                   const StreamCrossing& way);

/// Adds what the last sub-block computed to the streams, if they lack it: for whoever reads them elsewhere than on the
/// way from one sub-block to the next.
void settle_streams(const Math& math, const HyperConnectionConfig& config, ForwardPass& pass);

/// H of every row's streams. Memory from the pass's arena.
[[nodiscard]] HyperConnectionMix hyper_connection_mix(const Math& math, const HyperConnectionConfig& config,
                                                      const HyperConnectionWeights& weights, const ForwardPass& pass);

/// A X of each row, [rows, d], with its rounding point.
void collapse_streams(const Math& math, const HyperConnectionConfig& config, Span2d<const float> stream,
                      Span2d<const float> pre, Span2d<float> out);

/// X' = B X + C y, in place, with its rounding point.
void expand_streams(const Math& math, const HyperConnectionConfig& config, const HyperConnectionMix& mix,
                    Span2d<const float> y, Span2d<float> stream);

}  // namespace tidepool
