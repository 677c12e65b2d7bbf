#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tidepool {

/// "model-00001-of-00016.safetensors"; `shard` counts from 1.
[[nodiscard]] std::string shard_name(size_t shard, size_t shards);

/// The text of model.safetensors.index.json: which shard (counted from 1) holds each tensor, and how many bytes all
/// tensors have. Names are of letters, digits, dots and underscores.
[[nodiscard]] std::string make_model_index(std::vector<std::pair<std::string, size_t>> places, size_t shards,
                                           uint64_t total_bytes);

}  // namespace tidepool
