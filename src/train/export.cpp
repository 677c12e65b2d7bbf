#include "train/export.h"

#include <fmt/format.h>

#include <list>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/folder_lock.h"
#include "formats/checkpoint.h"
#include "formats/config_writer.h"
#include "formats/model_index.h"
#include "formats/safetensors.h"
#include "train/weight_packer.h"

namespace tidepool {

namespace {

/// One parameter with its scales, not yet packed.
struct ExportedTensor {
  const Parameter<float>* parameter;
  const ExpectedTensor* weight;
  const ExpectedTensor* scale;  ///< null for formats without
  uint64_t bytes;               ///< of both
};

uint64_t bytes_of(const ExpectedTensor& tensor) {
  return tensor_bytes(tensor.dtype, tensor.shape).value_or(0);
}

std::vector<ExportedTensor> list_tensors(const std::vector<ExpectedTensor>& expected,
                                         const ParameterSet<float>& parameters) {
  constexpr std::string_view kWeight = ".weight";
  std::map<std::string_view, const ExpectedTensor*> by_name;
  for (const ExpectedTensor& tensor : expected)
    by_name.emplace(tensor.name, &tensor);
  std::vector<ExportedTensor> result;
  result.reserve(parameters.all().size());
  for (const Parameter<float>& parameter : parameters.all()) {
    ExportedTensor tensor{&parameter, by_name.at(parameter.name), nullptr, 0};
    tensor.bytes = bytes_of(*tensor.weight);
    if (scale_tile(parameter.format).cols != 0) {
      const std::string stem = parameter.name.substr(0, parameter.name.size() - kWeight.size());
      tensor.scale = by_name.at(stem + ".scale");
      tensor.bytes += bytes_of(*tensor.scale);
    }
    result.push_back(tensor);
  }
  return result;
}

/// Tensors in the table's order, cut where a shard is full.
std::vector<std::vector<ExportedTensor>> make_shards(const std::vector<ExportedTensor>& tensors, uint64_t most_bytes) {
  std::vector<std::vector<ExportedTensor>> shards;
  uint64_t used = 0;
  for (const ExportedTensor& tensor : tensors) {
    if (shards.empty() || used + tensor.bytes > most_bytes) {
      shards.emplace_back();
      used = 0;
    }
    shards.back().push_back(tensor);
    used += tensor.bytes;
  }
  return shards;
}

void write_shard(const std::filesystem::path& path, const std::vector<ExportedTensor>& shard) {
  std::list<PackedWeight> packed;  // does not move what it holds
  std::vector<TensorToWrite> tensors;
  tensors.reserve(2 * shard.size());
  for (const ExportedTensor& tensor : shard) {
    packed.push_back(pack_weight(tensor.parameter->format, tensor.parameter->value.data));
    tensors.push_back({tensor.weight->name, tensor.weight->dtype, tensor.weight->shape, packed.back().codes});
    if (tensor.scale != nullptr)
      tensors.push_back({tensor.scale->name, tensor.scale->dtype, tensor.scale->shape, packed.back().scales});
  }
  const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}};
  write_safetensors(path, tensors, metadata);
}

}  // namespace

void export_model(const ModelExport& target, const ParameterSet<float>& parameters) {
  make_folder(target.folder);
  const std::vector<ExpectedTensor> expected = expected_tensors(target.config);
  const auto shards = make_shards(list_tensors(expected, parameters), target.shard_bytes);
  std::vector<std::pair<std::string, size_t>> places;
  places.reserve(expected.size());
  uint64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    write_shard(target.folder / shard_name(i + 1, shards.size()), shards[i]);
    for (const ExportedTensor& tensor : shards[i]) {
      places.emplace_back(tensor.weight->name, i + 1);
      if (tensor.scale != nullptr) places.emplace_back(tensor.scale->name, i + 1);
      total += tensor.bytes;
    }
  }
  write_file_atomically(target.folder / "config.json", write_config(target.config));
  write_file_atomically(target.folder / "tokenizer.json", target.tokenizer_json);
  // Last: a new folder that has an index has the rest.
  write_file_atomically(target.folder / "model.safetensors.index.json",
                        make_model_index(std::move(places), shards.size(), total));
}

}  // namespace tidepool
