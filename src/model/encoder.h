#pragma once

#include "model/model.h"

namespace tidepool {

/// The causal encoder: all layers before the decoder, for every row, then the decoder's global KV, which is one
/// projection of the encoder's output. Afterwards the pass's streams are the encoder's output. (docs/model.md 1.1)
void run_encoder(const Model& model, const Math& math, ForwardPass& pass);

}  // namespace tidepool
