#pragma once

#include <cstdint>
#include <span>

#include "model/model.h"

namespace tidepool {

/// The start of one row: the token's embedding copied to all residual streams, and the first mix one-hot on stream 0.
void embed_row(const Model& model, int32_t id, std::span<float> stream, std::span<float> pre_mix);

/// The same from an embedding [hidden] that is no row of the table.
void embed_row(const Model& model, std::span<const float> embedding, std::span<float> stream, std::span<float> pre_mix);

/// Starts a pass with the tokens of its sequences. (docs/model.md 2.6)
void embed_tokens(const Model& model, const Math& math, const ForwardPass& pass);

}  // namespace tidepool
