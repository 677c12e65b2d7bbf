#include "model/fingerprint.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"

namespace tidepool {
namespace {

/// Of each kind of tensor so many, spread over the layers; about a hundred kinds make 3 MB.
constexpr size_t kSamplesPerKind = 8;
/// Read of each: one page of the disk.
constexpr size_t kSampleBytes = 4096;
/// config.json has a few kilobytes.
constexpr uint64_t kConfigBytesMax = uint64_t{16} << 20;

/// "layers.12.ffn.experts.7.w1.weight" without its numbers.
std::string kind_of(const std::string& name) {
  std::string kind;
  std::ranges::copy_if(name, std::back_inserter(kind), [](char c) { return c < '0' || c > '9'; });
  return kind;
}

/// A place in the tensor that differs from tensor to tensor, so that no part of the layout is always left out.
uint64_t sample_offset(const std::string& name, uint64_t bytes) {
  if (bytes <= kSampleBytes) return 0;
  const Digest digest = FieldHasher("tidepool sample place").add(std::string_view(name)).finish();
  uint64_t value = 0;
  std::memcpy(&value, digest.data(), sizeof(value));
  return value % (bytes - kSampleBytes + 1);
}

void add_samples(FieldHasher& hasher, const Checkpoint& checkpoint,
                 const std::vector<Checkpoint::TensorInfo>& tensors) {
  std::map<std::string, std::vector<const Checkpoint::TensorInfo*>> kinds;
  for (const Checkpoint::TensorInfo& tensor : tensors)
    kinds[kind_of(tensor.name)].push_back(&tensor);
  for (const auto& [kind, members] : kinds) {
    const size_t count = std::min(members.size(), kSamplesPerKind);
    for (size_t i = 0; i < count; ++i) {
      const Checkpoint::TensorInfo& tensor = *members[i * members.size() / count];
      const uint64_t offset = sample_offset(tensor.name, tensor.bytes);
      const auto* data = reinterpret_cast<const std::byte*>(checkpoint.tensor(tensor.name).data);
      hasher.add(std::string_view(tensor.name))
          .add({data + offset, static_cast<size_t>(std::min<uint64_t>(tensor.bytes, kSampleBytes))});
    }
  }
}

void add_options(FieldHasher& hasher, const ModelOptions& options) {
  for (const bool flag : {options.numerics.round_to_bf16, options.numerics.quantise_activations,
                          options.faults.own_pre_mix, options.faults.unscaled_rope_position})
    hasher.add(static_cast<int64_t>(flag));
  for (const RowFormat format : {options.kv_formats.window, options.kv_formats.entry, options.kv_formats.key})
    hasher.add(static_cast<int64_t>(format));
}

}  // namespace

Digest model_fingerprint(const Model& model) {
  const Checkpoint& checkpoint = model.checkpoint();
  FieldHasher hasher("tidepool model");
  hasher.add(std::string_view(read_file(checkpoint.folder() / "config.json", kConfigBytesMax)));
  const std::vector<Checkpoint::TensorInfo> tensors = checkpoint.tensors();
  for (const Checkpoint::TensorInfo& tensor : tensors) {
    hasher.add(std::string_view(tensor.name)).add(static_cast<int64_t>(tensor.dtype));
    hasher.add(std::as_bytes(std::span(tensor.shape)));
  }
  add_samples(hasher, checkpoint, tensors);
  if (model.engram_hash() != nullptr) hasher.add(std::as_bytes(model.engram_hash()->token_map()));
  add_options(hasher, model.options());
  return hasher.finish();
}

}  // namespace tidepool
