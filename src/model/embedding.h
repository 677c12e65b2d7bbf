#pragma once

#include "model/model.h"

namespace tidepool {

/// Starts a pass: each row's embedding copied to all residual streams, and the first mix one-hot on stream 0. (model
/// notes 2.6)
void embed_tokens(const Model& model, const Math& math, const ForwardPass& pass);

}  // namespace tidepool
