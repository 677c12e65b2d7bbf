#pragma once

#include <span>

#include "model/model.h"

namespace tidepool {

/// Logits of the pass's `rows`, in their order: streams collapsed with the last FFN's mix, final norm, output head.
/// logits [rows.size(), vocab], binary32.
void compute_logits(const Model& model, const Math& math, const ForwardPass& pass, std::span<const size_t> rows,
                    Span2d<float> logits);

}  // namespace tidepool
