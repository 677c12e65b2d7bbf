#pragma once

#include "model/model.h"

namespace tidepool {

/// What happens to the streams before layer `layer` proper: its Engram, where it has one.
void enter_layer(const Model& model, const Math& math, size_t layer, const ForwardPass& pass);

/// The normalised attention input of layer `layer`, [rows, d], from the streams and the pending mix; in the pass's
/// arena.
[[nodiscard]] Span2d<float> attention_input(const Model& model, const Math& math, size_t layer,
                                            const ForwardPass& pass);

/// Writes the global KV that `layer` (a Full layer) owns, for all rows of the pass.
void write_layer_kv(const Model& model, const Math& math, size_t layer, const ForwardPass& pass);

/// Attention and FFN sub-blocks of one layer over the rows of the pass, after enter_layer(). For a Full layer the
/// global KV of the rows must be written already.
void run_layer(const Model& model, const Math& math, size_t layer, ForwardPass& pass);

}  // namespace tidepool
