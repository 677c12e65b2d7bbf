#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/temp_folder.h"
#include "engine/trace.h"
#include "model/golden_test_support.h"

/// What tests of trace cases share: the golden models in all numerics, results by name, bounds, cases of their own.
namespace tidepool::trace_test {

/// A checkpoint in all three numerics.
struct Models {
  explicit Models(const std::filesystem::path& path, ModelOptions options = {},
                  const kernels::KernelTable& kernels = kernels::select_kernels("auto",
                                                                                kernels::LinearInputs::kFloat32))
      : official(golden::load_model_from(path, options)),
        hp(golden::load_model_from(path, with(options, kHpNumerics))),
        without_grid(golden::load_model_from(path, with(options, {false, false}))),
        pool(2),
        runtime{pool, kernels} {}

  static ModelOptions with(ModelOptions options, Numerics numerics) {
    options.numerics = numerics;
    return options;
  }
  [[nodiscard]] TraceResult trace(const golden::Case& c, const TraceOptions& options = {}) const {
    return trace_case({official, hp, without_grid, runtime}, c.file(), options);
  }

  Model official;
  Model hp;
  Model without_grid;
  ThreadPool pool;
  Runtime runtime;
};

inline const TraceTensor* find_tensor(const TraceResult& result, const std::string& name) {
  for (const TraceTensor& tensor : result.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

inline std::vector<float> floats(const TraceResult& result, const std::string& name) {
  const TraceTensor* tensor = find_tensor(result, name);
  if (tensor == nullptr || tensor->dtype != Dtype::kF32) return {};
  std::vector<float> values(tensor->data.size() / sizeof(float));
  std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

inline std::vector<int32_t> ints(const TraceResult& result, const std::string& name) {
  const TraceTensor* tensor = find_tensor(result, name);
  if (tensor == nullptr || tensor->dtype != Dtype::kI32) return {};
  std::vector<int32_t> values(tensor->data.size() / sizeof(int32_t));
  std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

/// "BF16 at the official points": median 0.025, p90 0.06, each row 0.03 + 3 * its noise.
inline bool passes_official(const std::vector<double>& errors, std::span<const float> noise) {
  for (size_t row = 0; row < errors.size(); ++row) {
    if (errors[row] > 0.03 + 3.0 * static_cast<double>(noise[row])) return false;
  }
  return golden::quantile(errors, 0.5) <= 0.025 && golden::quantile(errors, 0.9) <= 0.06;
}

/// "FP32 activations, all grids": median 0.01, p90 0.025, max 0.1.
inline bool passes_hp(const std::vector<double>& errors) {
  return golden::quantile(errors, 0.5) <= 0.01 && golden::quantile(errors, 0.9) <= 0.025 &&
         golden::quantile(errors, 1.0) <= 0.1;
}

inline std::vector<double> logits_errors(const TraceResult& result, const std::string& name,
                                         std::span<const float> expected) {
  const std::vector<float> actual = floats(result, name);
  EXPECT_FALSE(actual.empty()) << name;
  return golden::row_errors(actual, expected, static_cast<size_t>(find_tensor(result, name)->shape[0]));
}

/// A case of our own making, in memory of the test, written to a file.
class OwnCase {
 public:
  void add(const std::string& name, Dtype dtype, const std::vector<int64_t>& shape, std::vector<std::byte> data) {
    storage_.push_back(std::move(data));
    tensors_.push_back({name, dtype, shape, {}});
  }
  void add_ints(const std::string& name, const std::vector<int32_t>& values) {
    add_ints(name, values, {static_cast<int64_t>(values.size())});
  }
  void add_ints(const std::string& name, const std::vector<int32_t>& values, const std::vector<int64_t>& shape) {
    std::vector<std::byte> data(values.size() * sizeof(int32_t));
    std::memcpy(data.data(), values.data(), data.size());
    add(name, Dtype::kI32, shape, std::move(data));
  }
  void add_output(const std::string& name, Dtype dtype, const std::vector<int64_t>& shape) {
    add(name, dtype, shape, std::vector<std::byte>(tensor_bytes(dtype, shape).value()));
  }
  [[nodiscard]] SafetensorsFile open() {
    for (size_t i = 0; i < tensors_.size(); ++i)
      tensors_[i].data = storage_[i];
    const std::filesystem::path path = folder_.path() / "case.safetensors";
    write_safetensors(path, tensors_);
    return SafetensorsFile(path);
  }

 private:
  TempFolder folder_;
  std::vector<std::vector<std::byte>> storage_;
  std::vector<TensorToWrite> tensors_;
};

inline void expect_refused(OwnCase& own, ErrorCode code, const std::string& part_of_message) {
  const Models models(golden::folder() / "ckpt");
  const SafetensorsFile file = own.open();
  try {
    (void)trace_case({models.official, models.hp, models.without_grid, models.runtime}, file, TraceOptions{});
    FAIL() << "expected an error with: " << part_of_message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_NE(std::string(error.what()).find(part_of_message), std::string::npos) << error.what();
  }
}

}  // namespace tidepool::trace_test
