#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "train/parameter_set.h"

namespace tidepool {

/// What a trained model becomes files with.
struct ModelExport {
  const ModelConfig& config;        ///< the parameters are those of this config
  std::string_view tokenizer_json;  ///< the text of tokenizer.json
  std::filesystem::path folder;     ///< made where needed; files of these names in it are replaced
  /// A file holds at least one tensor with its scales, and more as long as it stays within this.
  uint64_t shard_bytes = uint64_t{4} << 30U;
};

/// Writes the parameters as a released model folder: config.json, tokenizer.json, shards, and their index, which
/// Checkpoint::open reads. Values are rounded to their released formats. Throws Error(kIo).
void export_model(const ModelExport& target, const ParameterSet<float>& parameters);

}  // namespace tidepool
