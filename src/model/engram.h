#pragma once

#include <span>

#include "model/engram_hash.h"
#include "model/forward_pass.h"
#include "model/hyper_connection.h"
#include "model/image_fault.h"
#include "model/math.h"
#include "model/weights.h"

namespace tidepool {

/// Engram of one layer: table rows by n-gram hash, projected to a key per stream and one value; each stream takes the
/// value through its own gate. (docs/model.md 2.8)
struct Engram {
  const Math& math;
  const EngramHash& hash;
  const EngramWeights& weights;
  size_t slot = 0;      ///< place among the Engram layers
  size_t layer = 0;     ///< for the probe
  size_t head_dim = 0;  ///< width of a table row
  size_t streams = 0;   ///< residual streams
  size_t hidden = 0;    ///< width of a stream
  float norm_eps = 0;
  ImageFault image_fault = ImageFault::kNone;
};

/// The raw gate input of one stream:
///   dot = sum h * (q_weight * k_weight) * key * rsqrt(mean h^2 + eps) * rsqrt(mean key^2 + eps) * d^-0.5.
[[nodiscard]] float engram_dot(std::span<const float> h, std::span<const float> key, const Bf16* q_weight,
                               const Bf16* k_weight, float eps);

/// gate = sigmoid(sign(dot) sqrt(max(|dot|, 1e-6))).
[[nodiscard]] float engram_gate(float dot);

/// stream_j += gate_j * value, in place over pass.stream; image positions are left alone.
void apply_engram(const Engram& engram, const ForwardPass& pass);

}  // namespace tidepool
