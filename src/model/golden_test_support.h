#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "formats/bf16.h"
#include "formats/safetensors.h"
#include "model/model.h"

/// What tests of several floors need to compare with the golden vectors.
namespace tidepool::golden {

inline std::filesystem::path folder() {
  return TIDEPOOL_GOLDEN_DIR;
}

/// A golden case, read whole as numbers.
class Case {
 public:
  explicit Case(const std::string& name) : file_(folder() / "cases" / (name + ".safetensors")) {}

  [[nodiscard]] const SafetensorsFile& file() const { return file_; }
  [[nodiscard]] std::vector<int64_t> shape(const std::string& name) const { return file_.tensor(name).shape; }

  [[nodiscard]] std::vector<float> floats(const std::string& name) const {
    const TensorView tensor = file_.tensor(name);
    std::vector<float> values(tensor.bytes / dtype_bytes(tensor.dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      if (tensor.dtype == Dtype::kBf16) {
        values[i] = to_float(element<Bf16>(tensor, i));
      } else {
        TIDEPOOL_CHECK(tensor.dtype == Dtype::kF32, name);
        values[i] = element<float>(tensor, i);
      }
    }
    return values;
  }

  [[nodiscard]] std::vector<int64_t> ints(const std::string& name) const {
    const TensorView tensor = file_.tensor(name);
    std::vector<int64_t> values(tensor.bytes / dtype_bytes(tensor.dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      switch (dtype_bytes(tensor.dtype)) {
        case 1: values[i] = static_cast<int64_t>(tensor.data[i]); break;
        case 4: values[i] = element<int32_t>(tensor, i); break;
        default: values[i] = element<int64_t>(tensor, i); break;
      }
    }
    return values;
  }

  [[nodiscard]] std::vector<InputToken> tokens(const std::string& name) const {
    std::vector<InputToken> result;
    for (const int64_t id : ints(name))
      result.push_back({static_cast<int32_t>(id), false});
    return result;
  }

 private:
  template <typename T>
  static T element(const TensorView& tensor, size_t index) {
    T value;
    std::memcpy(&value, tensor.data + index * sizeof(T), sizeof(T));
    return value;
  }

  SafetensorsFile file_;
};

/// Engram's token map of the tiny checkpoint, as the reference computed it.
inline std::vector<int32_t> token_map() {
  const std::vector<int64_t> wide = Case("engram_this_config").ints("token_map");
  return {wide.begin(), wide.end()};
}

/// Tokens of text, none of which controls anything.
inline std::vector<InputToken> random_tokens(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<InputToken> tokens(count);
  for (InputToken& token : tokens)
    token.id = static_cast<int32_t>(3 + random() % 490);
  return tokens;
}

/// The tiny checkpoint ("ckpt" or "ckpt_textonly") as a model.
inline Model load_model_from(const std::filesystem::path& checkpoint, const ModelOptions& options = {}) {
  return Model(Checkpoint::open(checkpoint), token_map(), options);
}
inline Model load_model(const std::string& name, const ModelOptions& options = {}) {
  return load_model_from(folder() / name, options);
}

/// ||a - b|| / ||b|| of each of `rows` rows; equal infinities count as equal.
inline std::vector<double> row_errors(std::span<const float> a, std::span<const float> b, size_t rows) {
  TIDEPOOL_CHECK(a.size() == b.size() && rows > 0 && a.size() % rows == 0, "shapes differ");
  const size_t width = a.size() / rows;
  std::vector<double> errors;
  for (size_t row = 0; row < rows; ++row) {
    double difference = 0;
    double norm = 0;
    for (size_t i = row * width; i < (row + 1) * width; ++i) {
      if (a[i] == b[i] && std::isinf(a[i])) continue;
      difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
      norm += std::pow(static_cast<double>(b[i]), 2);
    }
    errors.push_back(difference == 0 ? 0 : std::sqrt(difference / norm));
  }
  return errors;
}

/// The value below which `fraction` of the errors lie.
inline double quantile(std::vector<double> errors, double fraction) {
  std::ranges::sort(errors);
  return errors[std::min(errors.size() - 1, static_cast<size_t>(fraction * static_cast<double>(errors.size())))];
}

}  // namespace tidepool::golden
