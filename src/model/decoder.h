#pragma once

#include "model/model.h"

namespace tidepool {

/// The decoder: its layers over the rows that need it, usually few. Takes the encoder's output (run_encoder has entered
/// its first layer and written its global KV) and leaves the streams for compute_logits(). (docs/model.md 1.2)
void run_decoder(const Model& model, const Math& math, ForwardPass& pass);

}  // namespace tidepool
