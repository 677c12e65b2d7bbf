#include "formats/standin.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/file.h"
#include "base/folder_lock.h"
#include "formats/checkpoint.h"
#include "formats/model_index.h"
#include "formats/safetensors.h"

namespace tidepool {
namespace {

using Shards = std::vector<std::vector<ExpectedTensor>>;

/// Number after `prefix` in a name like "layers.12.attn", or -1 for another name.
int64_t block_number(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return -1;
  int64_t number = 0;
  for (const char c : name.substr(prefix.size())) {
    if (c == '.') return number;
    number = number * 10 + (c - '0');
  }
  return -1;
}

/// The released order of the groups; a part that is absent has no shard.
Shards group(std::vector<ExpectedTensor> tensors, const ModelConfig& config) {
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  const size_t stages = config.dspark ? static_cast<size_t>(config.dspark->num_layers) : 0;
  const size_t norm_shard = 2 + layers;
  const size_t table_shard = norm_shard + 1 + stages;
  Shards shards(table_shard + (config.engram ? config.engram->layer_ids.size() : 0));
  const auto shard_of = [&](const std::string& name) -> size_t {
    const int64_t layer = block_number(name, "layers.");
    if (layer >= 0 && name.find(".engram.embed.") != std::string::npos) {
      const auto& ids = config.engram->layer_ids;
      return table_shard + static_cast<size_t>(std::find(ids.begin(), ids.end(), layer) - ids.begin());
    }
    if (layer >= 0) return 2 + static_cast<size_t>(layer);
    const int64_t stage = block_number(name, "mtp.");
    if (stage >= 0) return norm_shard + 1 + static_cast<size_t>(stage);
    if (name.starts_with("vision.") || name.starts_with("aligner.")) return 0;
    return name == "norm.weight" || name == "head.weight" ? norm_shard : 1;
  };
  for (ExpectedTensor& tensor : tensors) {
    const size_t shard = shard_of(tensor.name);
    shards[shard].push_back(std::move(tensor));
  }
  std::erase_if(shards, [](const auto& shard) { return shard.empty(); });
  return shards;
}

/// Writes one shard and returns the bytes of its tensors.
uint64_t write_shard(const std::filesystem::path& path, std::vector<ExpectedTensor>& shard) {
  // Widest elements first keeps all aligned.
  std::sort(shard.begin(), shard.end(), [](const ExpectedTensor& a, const ExpectedTensor& b) {
    return dtype_bytes(a.dtype) != dtype_bytes(b.dtype) ? dtype_bytes(a.dtype) > dtype_bytes(b.dtype) : a.name < b.name;
  });
  std::vector<TensorToWrite> tensors;
  tensors.reserve(shard.size());
  uint64_t bytes = 0;
  for (const ExpectedTensor& tensor : shard) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
    const auto tensor_size = tensor_bytes(tensor.dtype, tensor.shape);
    TIDEPOOL_CHECK(tensor_size.has_value(), "a config that was checked has tensors of a size");
    bytes += *tensor_size;
  }
  const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}};
  const std::string header = make_safetensors_header(tensors, metadata);
  real_file_system().remove(path);
  const auto file = real_file_system().open(path, FileSystem::Mode::kCreate);
  file->write_all(0, std::as_bytes(std::span(header)));
  file->truncate(header.size() + bytes);
  return bytes;
}

}  // namespace

void write_standin(const std::filesystem::path& config_file, const std::filesystem::path& folder) {
  const ModelConfig config = load_config(config_file);
  make_folder(folder);
  Shards shards = group(expected_tensors(config), config);
  uint64_t total = 0;
  std::vector<std::pair<std::string, size_t>> places;  // tensor -> shard
  for (size_t i = 0; i < shards.size(); ++i) {
    total += write_shard(folder / shard_name(i + 1, shards.size()), shards[i]);
    for (const ExpectedTensor& tensor : shards[i])
      places.emplace_back(tensor.name, i + 1);
  }
  write_file_atomically(folder / "model.safetensors.index.json",
                        make_model_index(std::move(places), shards.size(), total));
  write_file_atomically(folder / "config.json", read_file(config_file, uint64_t{1} << 20));
}

}  // namespace tidepool
