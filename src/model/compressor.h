#pragma once

#include <span>

#include "model/forward_pass.h"
#include "model/layer_table.h"
#include "model/math.h"
#include "model/weights.h"

namespace tidepool {

/// Pools the tokens of one group of two, per channel: softmax over the two gates, weighted sum of the two values.
/// Each input is kv then gate, [2 * width]; out [width]. (docs/model.md 2.2)
void pool_pair(std::span<const float> first, std::span<const float> second, std::span<float> out);

/// What a layer that owns global KV needs to write it.
struct GlobalKvWriter {
  const Math& math;
  const CompressorWeights& compressor;
  const IndexKeyWeights& index_key;
  const LayerPlan& plan;
  const RopeTable& rope;
  float norm_eps = 0;
  size_t rope_dim = 0;  ///< last values of entry and key that are rotated
  /// Test hook: rotates entry j at position j instead of j * ratio.
  bool unscaled_rope_position = false;
};

/// Writes the global entries and index keys that the rows of `pass` complete, from the layer's normalised attention
/// input x [rows, d]. A group that stays open leaves its token's values in the sequence for the partner to come.
void write_global_kv(const GlobalKvWriter& writer, const ForwardPass& pass, Span2d<const float> x);

}  // namespace tidepool
