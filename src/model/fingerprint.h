#pragma once

#include "kv/sha256.h"
#include "model/model.h"

namespace tidepool {

/// Names everything that the KV of a model depends on besides tokens: config.json, the table of tensors, samples of the
/// weights, Engram's token map, numerics and row formats. Reads at most a few megabytes, from tensors of every kind, so
/// that it takes a moment for a checkpoint of any size; weights that were changed in few places only may escape it.
/// Kernels are left out: they differ in the last bits of sums.
[[nodiscard]] Digest model_fingerprint(const Model& model);

}  // namespace tidepool
