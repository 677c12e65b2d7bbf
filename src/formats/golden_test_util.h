#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bf16.h"
#include "formats/safetensors.h"

namespace tidepool {

inline const std::filesystem::path kGolden = TIDEPOOL_GOLDEN_DIR;

/// The golden vectors of single operators, for tests.
class GoldenCase {
 public:
  explicit GoldenCase(const std::string& name)
      : file_(std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "cases" / (name + ".safetensors")) {}

  [[nodiscard]] TensorView view(std::string_view name) const { return file_.tensor(name); }

  [[nodiscard]] std::vector<uint8_t> bytes(std::string_view name) const {
    const TensorView tensor = view(name);
    std::vector<uint8_t> result(tensor.bytes);
    std::memcpy(result.data(), tensor.data, tensor.bytes);
    return result;
  }

  /// An F32 or BF16 tensor as numbers.
  [[nodiscard]] std::vector<float> floats(std::string_view name) const {
    const TensorView tensor = view(name);
    std::vector<float> result(tensor.bytes / dtype_bytes(tensor.dtype));
    if (tensor.dtype == Dtype::kF32) {
      std::memcpy(result.data(), tensor.data, tensor.bytes);
      return result;
    }
    EXPECT_EQ(tensor.dtype, Dtype::kBf16) << name;
    std::vector<Bf16> codes(result.size());
    std::memcpy(codes.data(), tensor.data, tensor.bytes);
    for (size_t i = 0; i < codes.size(); ++i)
      result[i] = to_float(codes[i]);
    return result;
  }

 private:
  SafetensorsFile file_;
};

/// Equal as numbers, with any NaN equal to any other.
inline bool same_number(float a, float b) {
  return a == b || (a != a && b != b);
}

}  // namespace tidepool
