#pragma once

#include "model/model.h"

namespace tidepool {

/// One block, of the backbone or of the draft head.
struct Block {
  const LayerWeights& weights;
  const LayerPlan& plan;
  const MoeConfig& moe;
};

/// What happens to the streams before layer `layer` proper: its Engram, where it has one.
void enter_layer(const Model& model, const Math& math, size_t layer, ForwardPass& pass);

/// Where a draft head taps `layer` (or a probe looks on): the mean of the streams that enter it, to pass.taps. Call
/// between enter_layer() and run_layer().
void collect_tap(const Model& model, const Math& math, size_t layer, ForwardPass& pass);

/// The normalised attention input of layer `layer`, [rows, d], from the streams and the pending mix; in the pass's
/// arena.
[[nodiscard]] Span2d<float> attention_input(const Model& model, const Math& math, size_t layer, ForwardPass& pass);

/// Writes the global KV that `layer` (a Full layer) owns, for all rows of the pass.
void write_layer_kv(const Model& model, const Math& math, size_t layer, ForwardPass& pass);

/// Attention and FFN sub-blocks of a block over the rows of the pass, whose streams lack the output of the latter
/// behind it, unless a probe looks on.
void run_block(const Model& model, const Math& math, const Block& block, ForwardPass& pass);

/// The same for one layer, over the rows of the pass, after enter_layer(). For a Full layer the
/// global KV of the rows must be written already.
void run_layer(const Model& model, const Math& math, size_t layer, ForwardPass& pass);

}  // namespace tidepool
