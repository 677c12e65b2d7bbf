#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "formats/bf16.h"
#include "formats/matrix.h"
#include "kernels/kernel_table.h"
#include "kernels/kernel_table_internal.h"

// What the tests of the kernels share: numbers that are the same on every run, and matrices of them.

namespace tidepool::kernels::testing {

/// splitmix64: the same sequence everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  size_t below(size_t count) { return static_cast<size_t>(bits() % count); }
  /// Uniform in [-1, 1), 24 bits.
  float value() { return static_cast<float>(static_cast<int64_t>(bits() >> 39) - (1 << 24)) / (1 << 24); }
  std::vector<float> values(size_t count, float scale = 1) {
    std::vector<float> result(count);
    for (float& v : result)
      v = value() * scale;
    return result;
  }

 private:
  uint64_t state_;
};

/// A matrix with its own memory, every byte of which is owned: reading past the end is seen by AddressSanitizer.
struct OwnedMatrix {
  std::vector<std::byte> data;
  std::vector<uint8_t> scales;
  MatrixView view;
};

inline size_t scale_count(MatrixFormat format, size_t out, size_t in) {
  switch (format) {
    case MatrixFormat::kFp8Tile32: return (out + 31) / 32 * ((in + 31) / 32);
    case MatrixFormat::kFp4Block32: return out * (in / 32);
    case MatrixFormat::kBf16:
    case MatrixFormat::kFloat32: return 0;
  }
  return 0;
}

/// Random codes, none of them NaN or infinite; scales 2^-7 to 2^8.
inline OwnedMatrix random_matrix(Random& random, MatrixFormat format, size_t out, size_t in) {
  OwnedMatrix result;
  result.data.resize(out * matrix_row_bytes(format, in));
  for (std::byte& b : result.data)
    b = static_cast<std::byte>(random.bits());
  if (format == MatrixFormat::kFp8Tile32) {
    for (std::byte& b : result.data) {
      if ((b & std::byte{0x7f}) == std::byte{0x7f}) b = std::byte{0x3c};
    }
  }
  for (size_t i = 0; format == MatrixFormat::kBf16 && i < result.data.size(); i += 2) {
    const Bf16 value = to_bf16(random.value());
    std::memcpy(result.data.data() + i, &value, 2);
  }
  for (size_t i = 0; format == MatrixFormat::kFloat32 && i < result.data.size(); i += 4) {
    const float value = random.value();
    std::memcpy(result.data.data() + i, &value, 4);
  }
  result.scales.resize(scale_count(format, out, in));
  for (uint8_t& s : result.scales)
    s = static_cast<uint8_t>(120 + random.below(16));
  result.view = {.format = format, .out = out, .in = in, .data = result.data.data(), .scales = result.scales.data()};
  return result;
}

using LinearEntry = void (*)(const LinearArgs&) noexcept;
inline LinearEntry linear_of(const KernelTable& table, MatrixFormat format) {
  switch (format) {
    case MatrixFormat::kFp8Tile32: return table.linear_fp8;
    case MatrixFormat::kFp4Block32: return table.linear_fp4;
    case MatrixFormat::kBf16: return table.linear_bf16;
    case MatrixFormat::kFloat32: return table.linear_f32;
  }
  return nullptr;
}

/// y = W x for all rows and outputs. x is copied to rows of its own, a little apart, so that a stride is used.
inline std::vector<float> run_linear(const KernelTable& table, const MatrixView& weight, const std::vector<float>& x,
                                     size_t rows) {
  std::vector<float> y(rows * weight.out, -1.0F);
  linear_of(table, weight.format)({.weight = weight,
                                   .x = x.data(),
                                   .x_stride = weight.in,
                                   .rows = rows,
                                   .y = y.data(),
                                   .y_stride = weight.out,
                                   .out_begin = 0,
                                   .out_end = weight.out});
  return y;
}

/// The same bits, NaNs of any kind being equal.
inline bool same_bits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

/// What is no number, and numbers below 2^-126, which some products count as zero. All are exact in bfloat16.
inline constexpr float kSpecialValues[] = {std::numeric_limits<float>::quiet_NaN(),
                                           -std::numeric_limits<float>::quiet_NaN(),
                                           std::numeric_limits<float>::infinity(),
                                           -std::numeric_limits<float>::infinity(),
                                           0x1p-133F,
                                           -0x1p-127F};

/// Both NaN, the same infinity, or both numbers.
inline bool same_kind(float a, float b) {
  return std::isfinite(a) ? std::isfinite(b) : same_bits(a, b);
}

/// Of the same kind, and numbers no further apart than tolerance(i).
template <typename Tolerance>
void expect_same_kind_and_near(const std::vector<float>& actual, const std::vector<float>& expected,
                               const Tolerance& tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(same_kind(actual[i], expected[i])) << i << ": " << actual[i] << " for " << expected[i];
    if (std::isfinite(expected[i])) {
      ASSERT_NEAR(actual[i], expected[i], tolerance(i)) << i;
    }
  }
}

/// Steps of bfloat16 between two values that are exact in it, in the order of the real numbers.
inline int bf16_steps(float a, float b) {
  const auto place = [](float v) {
    const int bits = to_bf16(v).bits;
    return bits < 0x8000 ? bits : 0x8000 - bits;
  };
  return std::abs(place(a) - place(b));
}

/// Uniform in [-scale, scale), and exact in bfloat16 where the table's linears want that.
inline std::vector<float> linear_inputs(const KernelTable& table, Random& random, size_t count, float scale = 1) {
  std::vector<float> result = random.values(count, scale);
  if (table.needs_bf16_inputs) reference_kernels().round_bf16(result.data(), count);
  return result;
}

/// The tables this processor has, and the one whose tiles are emulated: for tests of linears.
inline std::vector<const KernelTable*> linear_tables() {
  std::vector<const KernelTable*> tables(available_kernels().begin(), available_kernels().end());
  if (emulated_amx_kernels() != nullptr) tables.push_back(emulated_amx_kernels());
  return tables;
}

/// Tests that run once for each table this processor has.
class EveryTable : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  [[nodiscard]] const KernelTable& table() const { return *GetParam(); }
};
inline std::string table_name(const ::testing::TestParamInfo<const KernelTable*>& info) {
  return std::string(info.param->name);
}
#define TIDEPOOL_FOR_EVERY_TABLE(suite) \
  INSTANTIATE_TEST_SUITE_P(Kernels, suite, ::testing::ValuesIn(available_kernels()), testing::table_name)

}  // namespace tidepool::kernels::testing
