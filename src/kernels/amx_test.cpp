#include <gmock/gmock.h>

#include <array>
#include <csignal>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "kernels/amx_emulator.h"
#include "kernels/amx_status.h"
#include "kernels/amx_status_internal.h"
#include "kernels/kernels_test_support.h"

// The tiles: their emulation against hand arithmetic, the trial of the real ones, and what tests of all linears
// (linear_test.cpp) do not reach in the tables that use them.

namespace tidepool::kernels {
namespace {

using testing::OwnedMatrix;
using testing::Random;

/// Tiles 0 [rows, columns], 1 [rows, 2 * pairs] and 2 [pairs, columns] for one product.
TileConfig product_shape(size_t rows, size_t columns, size_t pairs) {
  TileConfig config;
  config.rows[0] = config.rows[1] = static_cast<uint8_t>(rows);
  config.rows[2] = static_cast<uint8_t>(pairs);
  config.row_bytes[0] = config.row_bytes[2] = static_cast<uint16_t>(4 * columns);
  config.row_bytes[1] = static_cast<uint16_t>(4 * pairs);
  return config;
}

/// start + a . b for one output and one row of 32 columns.
float emulated_dot(const std::vector<float>& a, const std::vector<float>& b, float start = 0) {
  std::array<Bf16, 32> left{};
  std::array<Bf16, 32> right{};
  for (size_t i = 0; i < a.size(); ++i) {
    left[i] = to_bf16(a[i]);
    right[i] = to_bf16(b[i]);
  }
  AmxEmulator emulator;
  emulator.configure(product_shape(1, 1, 16));
  emulator.load(0, &start, 4);
  emulator.load(1, left.data(), 64);
  emulator.load(2, right.data(), 4);
  emulator.multiply(0, 1, 2);
  float result = 0;
  emulator.store(0, &result, 4);
  emulator.release();
  return result;
}

TEST(AmxEmulator, EvenAndOddColumnsAreSummedApart) {
  // 2^24 + 1 is a tie that goes to 2^24, so the even columns stay there; the odd ones make 2, and 2^24 + 2 is exact.
  // One sum over all columns would stay at 2^24.
  const std::vector<float> ones(5, 1.0F);
  EXPECT_EQ(emulated_dot({0x1p24F, 1, 1, 1, 1}, ones), 0x1p24F + 2);
  // A sum that starts at 2^24 gets the step's total, 3, in one go: 2^24 + 3 is a tie that goes to 2^24 + 4.
  EXPECT_EQ(emulated_dot({1, 1, 1}, ones, 0x1p24F), 0x1p24F + 4);
}

TEST(AmxEmulator, AProductIsNotRoundedBeforeItIsAdded) {
  // (1 + 2^-7)^2 = 1 + 2^-6 + 2^-14, and 2^10 more is 2^10 + 1 + 2^-6 (24 bits reach down to 2^-13: the tie 2^-14 goes
  // to even).
  EXPECT_EQ(emulated_dot({0x1p10F, 0, 1 + 0x1p-7F}, {1, 0, 1 + 0x1p-7F}), 0x1p10F + 1 + 0x1p-6F);
  // The product 2^127 * 2 is beyond binary32, the sum with -2^127 twice is not.
  EXPECT_EQ(emulated_dot({-0x1p127F, 0, 0x1p127F}, {1, 0, 2}), 0x1p127F);
}

TEST(AmxEmulator, SubnormalsAreZeros) {
  EXPECT_EQ(emulated_dot({0x1p-127F}, {0x1p100F}), 0);
  EXPECT_EQ(emulated_dot({0x1p100F}, {0x1p-127F}), 0);
  EXPECT_EQ(emulated_dot({0x1p-100F}, {0x1p-27F}), 0);
  EXPECT_EQ(emulated_dot({0x1p-100F}, {0x1p-26F}), 0x1p-126F);
  EXPECT_EQ(emulated_dot({1}, {0}, 0x1p-127F), 0);
  // Rounded to 24 bits with an exponent without bounds, 2^-126 (1 - 2^-16) stays below 2^-126.
  EXPECT_EQ(emulated_dot({0x1p-126F, 0, -0x1p-70F}, {1, 0, 0x1p-72F}), 0);
}

TEST(AmxEmulator, InfinitiesAndNaNs) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(emulated_dot({kInfinity, 1}, {2, 1}), kInfinity);
  EXPECT_TRUE(std::isnan(emulated_dot({kInfinity}, {0})));
  EXPECT_TRUE(std::isnan(emulated_dot({kInfinity, kInfinity}, {1, -1})));
  EXPECT_TRUE(std::isnan(emulated_dot({std::nanf("")}, {0})));
}

TEST(AmxEmulator, EveryRowMeetsEveryColumnAndTheRestOfTheTileIsUntouched) {
  // a[m, k] = m + 1 in column m alone, so sum[m, n] = (m + 1) * b[m, n]; b[k, n] = 10 k + n.
  constexpr size_t kRows = 3;
  constexpr size_t kColumns = 5;
  std::array<std::array<Bf16, 4>, kRows> a{};
  std::array<std::array<std::array<Bf16, 2>, kColumns>, 2> b{};
  for (size_t m = 0; m < kRows; ++m)
    a[m][m] = to_bf16(static_cast<float>(m + 1));
  for (size_t k = 0; k < 4; ++k) {
    for (size_t n = 0; n < kColumns; ++n)
      b[k / 2][n][k % 2] = to_bf16(static_cast<float>(10 * k + n));
  }
  std::array<std::array<float, 16>, 16> sum{};
  for (auto& row : sum)
    row.fill(-1);
  AmxEmulator emulator;
  emulator.configure(product_shape(kRows, kColumns, 2));
  emulator.zero(0);
  emulator.load(1, a.data(), sizeof a[0]);
  emulator.load(2, b.data(), sizeof b[0]);
  emulator.multiply(0, 1, 2);
  emulator.store(0, sum.data(), sizeof sum[0]);
  emulator.release();
  for (size_t m = 0; m < 16; ++m) {
    for (size_t n = 0; n < 16; ++n) {
      const bool is_inside = m < kRows && n < kColumns;
      EXPECT_EQ(sum[m][n], is_inside ? static_cast<float>((m + 1) * (10 * m + n)) : -1.0F) << m << ' ' << n;
    }
  }
}

TEST(AmxEmulatorDeathTest, WhatFaultsOnAProcessorEndsTheProcess) {
  EXPECT_DEATH(AmxEmulator().zero(0), "not configured");
  EXPECT_DEATH(AmxEmulator().configure(TileConfig{}), "not released");
  const auto multiply = [](const TileConfig& config) {
    AmxEmulator emulator;
    emulator.configure(config);
    emulator.multiply(0, 1, 2);
  };
  EXPECT_DEATH(multiply(TileConfig{}), "not configured");
  TileConfig odd = product_shape(16, 16, 16);
  odd.row_bytes[1] = 60;
  EXPECT_DEATH(multiply(odd), "do not fit");
  TileConfig wide = product_shape(16, 16, 16);
  wide.row_bytes[1] = 68;
  EXPECT_DEATH(multiply(wide), "16 rows of 64 bytes");
  TileConfig other;
  other.palette = 2;
  EXPECT_DEATH(multiply(other), "palette");
}

TEST(AmxStatus, EachHasItsOwnWords) {
  std::set<std::string_view> texts;
  for (const AmxStatus status : {AmxStatus::kUnsupportedByCpu, AmxStatus::kRefusedByOs, AmxStatus::kFaulted,
                                 AmxStatus::kWrongResult, AmxStatus::kReady})
    texts.insert(amx_status_text(status));
  EXPECT_EQ(texts.size(), 5U);
}

TEST(AmxStatus, TheTableIsThereExactlyWhenTheTrialWentWell) {
  const bool has_avx512 = emulated_amx_kernels() != nullptr;
  bool is_listed = false;
  for (const KernelTable* table : available_kernels())
    is_listed = is_listed || table->name == "amx";
  EXPECT_EQ(is_listed, amx_status() == AmxStatus::kReady && has_avx512);
}

/// A trial that ends in a signal says no, leaves the old handlers, and does no harm to a second one.
TEST(AmxStatus, ATrialThatFaultsIsSurvived) {
  struct sigaction before = {};
  sigaction(SIGILL, nullptr, &before);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(survives([](void*) { asm volatile("ud2"); }, nullptr));
    EXPECT_FALSE(survives([](void*) { (void)raise(SIGSEGV); }, nullptr));
    int answer = 0;
    EXPECT_TRUE(survives([](void* context) { *static_cast<int*>(context) = 42; }, &answer));
    EXPECT_EQ(answer, 42);
  }
  struct sigaction after = {};
  sigaction(SIGILL, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
}

/// The trial itself, whatever the processor says: on one without tiles it is an illegal instruction.
TEST(AmxStatus, TheTrialIsRightWhereThereAreTilesAndFaultsElsewhere) {
  const AmxStatus status = amx_status();
  bool is_right = false;
  const auto trial = [](void* answer) { *static_cast<bool*>(answer) = amx::multiplies_one_tile_right(); };
  if (status == AmxStatus::kReady) {
    EXPECT_TRUE(survives(trial, &is_right));
    EXPECT_TRUE(is_right);
  } else {
    EXPECT_NE(status, AmxStatus::kWrongResult);
    EXPECT_FALSE(survives(trial, &is_right));
  }
}

TEST(SelectKernels, BinaryInputsNeverMeetATableThatCutsThem) {
  for (const KernelTable* table : available_kernels()) {
    if (!table->needs_bf16_inputs) {
      EXPECT_EQ(&select_kernels(table->name, LinearInputs::kFloat32), table);
      continue;
    }
    try {
      (void)select_kernels(table->name, LinearInputs::kFloat32);
      FAIL() << table->name << " was given";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr(table->name), ::testing::HasSubstr("hp")));
    }
  }
  EXPECT_FALSE(select_kernels("auto", LinearInputs::kFloat32).needs_bf16_inputs);
  EXPECT_TRUE(emulated_amx_kernels() == nullptr || emulated_amx_kernels()->needs_bf16_inputs);
}

/// The emulated table, and the real one where there is one.
class OnTiles : public testing::EveryTable {};
std::vector<const KernelTable*> tile_tables() {
  std::vector<const KernelTable*> tables;
  for (const KernelTable* table : testing::linear_tables()) {
    if (table->needs_bf16_inputs) tables.push_back(table);
  }
  return tables;
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OnTiles);  // a processor without AVX-512
INSTANTIATE_TEST_SUITE_P(Kernels, OnTiles, ::testing::ValuesIn(tile_tables()), testing::table_name);

constexpr MatrixFormat kTileFormats[] = {MatrixFormat::kFp8Tile32, MatrixFormat::kFp4Block32, MatrixFormat::kBf16};

/// Every shape that rows take: one, padded to four, whole tiles, whole pairs of tiles, several packings.
TEST_P(OnTiles, ARowHasTheSameBitsInEveryBatch) {
  Random random(11);
  for (const MatrixFormat format : kTileFormats) {
    const size_t in = format == MatrixFormat::kFp4Block32 ? 288 : 275;
    constexpr size_t kOut = 21;
    constexpr size_t kRowsMost = 140;
    const OwnedMatrix matrix = testing::random_matrix(random, format, kOut, in);
    const std::vector<float> x = testing::linear_inputs(table(), random, kRowsMost * in);
    const std::vector<float> all = testing::run_linear(table(), matrix.view, x, kRowsMost);
    for (const size_t rows :
         {1U, 2U, 3U, 4U, 5U, 7U, 8U, 11U, 13U, 15U, 16U, 17U, 31U, 32U, 33U, 47U, 64U, 65U, 129U}) {
      // The last rows of x, so that each row meets other places in the tiles.
      const size_t first = kRowsMost - rows;
      const std::vector<float> some(x.begin() + static_cast<ptrdiff_t>(first * in), x.end());
      const std::vector<float> y = testing::run_linear(table(), matrix.view, some, rows);
      for (size_t i = 0; i < y.size(); ++i)
        ASSERT_TRUE(testing::same_bits(y[i], all[first * kOut + i])) << rows << " rows: " << i;
    }
  }
}

/// Sums of small integers are exact in any order: bits of the right product, not of a near one.
TEST_P(OnTiles, IntegersAreExact) {
  Random random(12);
  constexpr size_t kIn = size_t{32} * 9;
  for (const size_t out : {1U, 15U, 16U, 17U, 32U, 50U}) {
    for (const size_t rows : {1U, 6U, 18U, 40U}) {
      std::vector<Bf16> codes(out * kIn);
      std::vector<float> x(rows * kIn);
      for (Bf16& code : codes)
        code = to_bf16(static_cast<float>(random.below(15)) - 7);
      for (float& v : x)
        v = static_cast<float>(random.below(31)) - 15;
      const MatrixView weight = {.format = MatrixFormat::kBf16,
                                 .out = out,
                                 .in = kIn,
                                 .data = reinterpret_cast<const std::byte*>(codes.data())};
      const std::vector<float> y = testing::run_linear(table(), weight, x, rows);
      for (size_t i = 0; i < y.size(); ++i) {
        int expected = 0;
        for (size_t k = 0; k < kIn; ++k)
          expected += static_cast<int>(to_float(codes[i % out * kIn + k]) * x[i / out * kIn + k]);
        ASSERT_EQ(y[i], static_cast<float>(expected)) << out << " outputs, " << rows << " rows: " << i;
      }
    }
  }
}

/// A block of ones for each scale that the tiles take, one row of x for each block: y[r, o] is code o times scale r.
TEST_P(OnTiles, EveryFp4CodeIsExactUnderEveryScaleOfTheTiles) {
  constexpr size_t kFirst = 2;
  constexpr size_t kScales = 251;
  constexpr size_t kIn = size_t{32} * kScales;
  constexpr float kValues[] = {0, .5F, 1, 1.5F, 2, 3, 4, 6};
  OwnedMatrix matrix;
  for (size_t code = 0; code < 16; ++code) {
    matrix.data.insert(matrix.data.end(), kIn / 2, static_cast<std::byte>(code * 17));
    for (size_t s = 0; s < kScales; ++s)
      matrix.scales.push_back(static_cast<uint8_t>(kFirst + s));
  }
  const MatrixView weight = {.format = MatrixFormat::kFp4Block32,
                             .out = 16,
                             .in = kIn,
                             .data = matrix.data.data(),
                             .scales = matrix.scales.data()};
  std::vector<float> x(kScales * kIn, 0.0F);
  for (size_t r = 0; r < kScales; ++r)
    x[r * kIn + 32 * r + r % 32] = 1;
  const std::vector<float> y = testing::run_linear(table(), weight, x, kScales);
  for (size_t i = 0; i < y.size(); ++i) {
    const float value = i % 16 < 8 ? kValues[i % 8] : -kValues[i % 8];
    ASSERT_EQ(y[i], std::ldexp(value, static_cast<int>(kFirst + i / 16) - 127)) << i;
  }
}

TEST_P(OnTiles, EveryFp8CodeIsExactUnderScalesOfTheTiles) {
  std::vector<uint8_t> scales = {10, 11, 126, 127, 128, 245, 246};
  for (int s = 30; s < 240; s += 23)
    scales.push_back(static_cast<uint8_t>(s));
  const size_t in = 32 * scales.size();
  OwnedMatrix matrix;
  for (size_t code = 0; code < 256; ++code)
    matrix.data.insert(matrix.data.end(), in, static_cast<std::byte>((code & 0x7f) == 0x7f ? 0 : code));
  for (size_t tile = 0; tile < 256 / 32; ++tile)
    matrix.scales.insert(matrix.scales.end(), scales.begin(), scales.end());
  const MatrixView weight = {.format = MatrixFormat::kFp8Tile32,
                             .out = 256,
                             .in = in,
                             .data = matrix.data.data(),
                             .scales = matrix.scales.data()};
  std::vector<float> x(scales.size() * in, 0.0F);
  for (size_t r = 0; r < scales.size(); ++r)
    x[r * in + 32 * r + (r * 5) % 32] = 1;
  const std::vector<float> y = testing::run_linear(table(), weight, x, scales.size());
  for (size_t i = 0; i < y.size(); ++i) {
    std::vector<float> row(in);
    dequantise_row(weight, i % 256, row);
    ASSERT_EQ(y[i], row[32 * (i / 256)]) << i;
  }
}

/// Scales that bfloat16 does not hold are for the vectors, output by output.
TEST_P(OnTiles, AnOutputWithAScaleOutsideIsTheVectors) {
  Random random(13);
  const KernelTable& vectors = select_kernels("avx512");
  for (const MatrixFormat format : {MatrixFormat::kFp8Tile32, MatrixFormat::kFp4Block32}) {
    constexpr size_t kIn = size_t{32} * 70;
    constexpr size_t kOut = 70;
    const bool is_fp8 = format == MatrixFormat::kFp8Tile32;
    OwnedMatrix matrix = testing::random_matrix(random, format, kOut, kIn);
    const std::vector<float> x = testing::linear_inputs(table(), random, 3 * kIn);
    const std::vector<float> before = testing::run_linear(table(), matrix.view, x, 3);
    for (const int outside : {0, is_fp8 ? 9 : 1, is_fp8 ? 247 : 253, 254}) {
      // Scale 66 of output 40 (of its row of scale tiles).
      uint8_t& scale = matrix.scales[(is_fp8 ? 40 / 32 : 40) * (kIn / 32) + 66];
      const uint8_t old = std::exchange(scale, static_cast<uint8_t>(outside));
      const std::vector<float> y = testing::run_linear(table(), matrix.view, x, 3);
      const std::vector<float> expected = testing::run_linear(vectors, matrix.view, x, 3);
      scale = old;
      for (size_t i = 0; i < y.size(); ++i) {
        const bool is_hit = is_fp8 ? i % kOut / 32 == 1 : i % kOut == 40;
        ASSERT_TRUE(testing::same_bits(y[i], is_hit ? expected[i] : before[i])) << outside << ": " << i;
      }
    }
  }
}

TEST_P(OnTiles, NaNsAndInfinitiesStayInTheirRow) {
  Random random(14);
  constexpr size_t kIn = 96;
  constexpr size_t kOut = 34;
  for (const MatrixFormat format : kTileFormats) {
    const OwnedMatrix matrix = testing::random_matrix(random, format, kOut, kIn);
    std::vector<float> x = testing::linear_inputs(table(), random, 6 * kIn);
    const std::vector<float> before = testing::run_linear(table(), matrix.view, x, 6);
    x[2 * kIn + 95] = std::nanf("");
    x[4 * kIn] = std::numeric_limits<float>::infinity();
    const std::vector<float> y = testing::run_linear(table(), matrix.view, x, 6);
    for (size_t i = 0; i < y.size(); ++i) {
      const bool is_right = i / kOut == 2   ? std::isnan(y[i])
                            : i / kOut == 4 ? !std::isfinite(y[i])
                                            : testing::same_bits(y[i], before[i]);
      EXPECT_TRUE(is_right) << i << ": " << y[i];
    }
  }
}

}  // namespace
}  // namespace tidepool::kernels
