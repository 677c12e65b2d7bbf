#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

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
  const std::byte* data = nullptr;  ///< aligned to the element size; null when `bytes` is 0
  size_t bytes = 0;
};

/// Bytes of a dense tensor, or nothing when a dimension is negative or the product does not fit in 63 bits.
[[nodiscard]] std::optional<uint64_t> tensor_bytes(Dtype dtype, const std::vector<int64_t>& shape);

}  // namespace tidepool
