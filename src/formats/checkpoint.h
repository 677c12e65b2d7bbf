#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/config.h"
#include "formats/matrix.h"

namespace tidepool {

/// Element types of the safetensors files we read.
enum class Dtype : uint8_t { kBool, kU8, kI8, kI32, kI64, kU64, kBf16, kF16, kF32, kF64, kF8E4m3, kF8E8m0 };

[[nodiscard]] std::string_view dtype_name(Dtype dtype);  ///< as the files spell it: "F8_E4M3"
[[nodiscard]] size_t dtype_bytes(Dtype dtype);
/// The dtype the files call `name`, or nothing.
[[nodiscard]] std::optional<Dtype> parse_dtype(std::string_view name);

/// One tensor of a file, borrowed from its mapping.
struct TensorView {
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

/// What the checkpoint must hold for a config: one line of the released tensor table. (checkpoint notes 2)
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

  [[nodiscard]] const ModelConfig& config() const;
  [[nodiscard]] const std::filesystem::path& folder() const;
  [[nodiscard]] bool has_part(ExpectedTensor::Part part) const;

  [[nodiscard]] bool has(std::string_view name) const;
  /// The tensor `name`; a missing one is a bug of the caller (open() has checked), so it CHECKs.
  [[nodiscard]] TensorView tensor(std::string_view name) const;
  /// `name` + ".weight" with `name` + ".scale" where there is one, as a matrix.
  [[nodiscard]] MatrixView matrix(std::string_view name) const;

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
