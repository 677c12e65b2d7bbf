#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "formats/config.h"
#include "formats/matrix.h"
#include "formats/tensor.h"

namespace tidepool {

/// What the checkpoint must hold for a config: one line of the released tensor table. (docs/formats.md)
struct ExpectedTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  /// Which part it belongs to, for `inspect` and for absence as a whole.
  enum class Part : uint8_t { kBackbone, kEngram, kDspark, kVision } part = Part::kBackbone;
};
[[nodiscard]] std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

/// A model folder, opened: config read and checked, every tensor found by released name, dtype and shape, files mapped
/// on demand. Immutable and safe to share between threads. Views borrow from it.
class Checkpoint {
 public:
  /// `folder` is a hub folder (config.json, *.safetensors, optional index; symlinks are followed).
  /// Throws Error; when tensors are missing, extra or mis-shaped, one error lists the first 20 and the count.
  [[nodiscard]] static std::shared_ptr<const Checkpoint> open(const std::filesystem::path& folder);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  /// As config.json says, less the draft head or vision tower where the files hold no tensor of it.
  [[nodiscard]] const ModelConfig& config() const;
  [[nodiscard]] const std::filesystem::path& folder() const;
  [[nodiscard]] bool has_part(ExpectedTensor::Part part) const;

  [[nodiscard]] bool has(std::string_view name) const;
  /// The tensor `name`; a missing one is a bug of the caller (open() has checked), so it CHECKs.
  [[nodiscard]] TensorView tensor(std::string_view name) const;
  /// `name` + ".weight" with `name` + ".scale" where there is one, or the plain tensor `name` ("layers.0.hc_attn_fn"),
  /// as a matrix. CHECKs that it is one: Engram tables are not, their scales are per row.
  [[nodiscard]] MatrixView matrix(std::string_view name) const;
  /// A hint on how the tensor's bytes will be touched (Engram tables: kRandom).
  void advise(std::string_view name, MappedFile::Access access) const;

  struct TensorInfo {
    std::string name;
    Dtype dtype;
    std::vector<int64_t> shape;
    uint64_t bytes;
    ExpectedTensor::Part part;
  };
  /// All tensors, sorted by name, for `inspect`. Does not touch their data.
  [[nodiscard]] std::vector<TensorInfo> tensors() const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool
