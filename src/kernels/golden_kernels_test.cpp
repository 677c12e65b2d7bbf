#include <numeric>

#include "formats/golden_test_util.h"
#include "formats/row_format.h"
#include "kernels/kernels_test_support.h"

// The recorded operators of the official reference (tests/golden/README.md, "kernels"), for every table.

namespace tidepool::kernels {
namespace {

class GoldenKernels : public testing::EveryTable {
 protected:
  GoldenCase golden_{"kernels"};

  /// At most `steps` of bfloat16 after rounding, and at least `equal_share` of the values equal.
  static void expect_bf16(std::vector<float> actual, const std::vector<float>& expected, int steps,
                          double equal_share = 0) {
    ASSERT_EQ(actual.size(), expected.size());
    size_t equal = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      const float rounded = tidepool::round_bf16(actual[i]);
      ASSERT_LE(testing::bf16_steps(rounded, expected[i]), steps) << i << ": " << rounded << " for " << expected[i];
      equal += rounded == expected[i] ? 1 : 0;
    }
    EXPECT_GE(static_cast<double>(equal), equal_share * static_cast<double>(actual.size()));
  }

  static void expect_near(const std::vector<float>& actual, const std::vector<float>& expected, float share) {
    ASSERT_EQ(actual.size(), expected.size());
    float largest = 0;
    for (const float v : expected)
      largest = std::max(largest, std::fabs(v));
    for (size_t i = 0; i < actual.size(); ++i)
      ASSERT_NEAR(actual[i], expected[i], share * largest) << i;
  }

  void check_linear(const std::string& prefix, MatrixFormat format) {
    const TensorView weight = golden_.view(prefix + ".weight");
    const TensorView scale = golden_.view(prefix + ".scale");
    const size_t pack = format == MatrixFormat::kFp4Block32 ? 2 : 1;
    const MatrixView matrix = {.format = format,
                               .out = static_cast<size_t>(weight.shape[0]),
                               .in = static_cast<size_t>(weight.shape[1]) * pack,
                               .data = weight.data,
                               .scales = reinterpret_cast<const uint8_t*>(scale.data)};
    std::vector<float> x = golden_.floats(prefix + ".x");
    table().quantise_fp8(x.data(), x.size());
    const std::vector<float> y = testing::run_linear(table(), matrix, x, x.size() / matrix.in);
    expect_near(y, golden_.floats(prefix + ".y_f32"), 1e-5F);
    expect_bf16(y, golden_.floats(prefix + ".y"), 1, 0.98);
  }

  void check_rope(const std::string& prefix) {
    const std::vector<float> cos = golden_.floats(prefix + ".cos");
    const std::vector<float> sin = golden_.floats(prefix + ".sin");
    constexpr size_t kPairs = 8;
    for (const auto& [name, sign] : {std::pair<std::string, float>{".y", 1.0F}, {".y_inverse", -1.0F}}) {
      std::vector<float> x = golden_.floats("rope.x");
      for (size_t head = 0; head < x.size() / (2 * kPairs); ++head) {
        const size_t position = head / 2;  // two heads at each
        table().rope(x.data() + head * 2 * kPairs, cos.data() + position * kPairs, sin.data() + position * kPairs,
                     kPairs, sign);
      }
      expect_bf16(x, golden_.floats(prefix + name), 1);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, GoldenKernels, ::testing::ValuesIn(testing::linear_tables()), testing::table_name);

TEST_P(GoldenKernels, ActivationsOnTheFp8Grid) {
  std::vector<float> x = golden_.floats("fp8_act.x");
  table().quantise_fp8(x.data(), x.size());
  EXPECT_EQ(x, golden_.floats("fp8_act.deq"));
}

TEST_P(GoldenKernels, Fp8Linear) {
  check_linear("fp8_gemm", MatrixFormat::kFp8Tile32);
}
TEST_P(GoldenKernels, Fp8LinearOfATileThatIsCut) {
  check_linear("fp8_gemm_ragged", MatrixFormat::kFp8Tile32);
}
TEST_P(GoldenKernels, Fp4Linear) {
  check_linear("fp4_gemm", MatrixFormat::kFp4Block32);
}

/// The weights themselves, by products with unit vectors.
TEST_P(GoldenKernels, Fp4Weights) {
  const TensorView weight = golden_.view("fp4_w.weight");
  const TensorView scale = golden_.view("fp4_w.scale");
  const MatrixView matrix = {.format = MatrixFormat::kFp4Block32,
                             .out = 40,
                             .in = 96,
                             .data = weight.data,
                             .scales = reinterpret_cast<const uint8_t*>(scale.data)};
  const std::vector<float> expected = golden_.floats("fp4_w.deq");
  std::vector<float> unit(size_t{96} * 96, 0.0F);
  for (size_t i = 0; i < 96; ++i)
    unit[i * 96 + i] = 1;
  const std::vector<float> y = testing::run_linear(table(), matrix, unit, 96);
  for (size_t o = 0; o < 40; ++o) {
    for (size_t i = 0; i < 96; ++i)
      ASSERT_EQ(y[i * 40 + o], expected[o * 96 + i]) << o << ", " << i;
  }
}

TEST_P(GoldenKernels, RmsNorm) {
  std::vector<float> x = golden_.floats("rmsnorm.x");
  std::vector<Bf16> weight(96);
  std::memcpy(weight.data(), golden_.view("rmsnorm.w").data, 96 * sizeof(Bf16));
  for (size_t row = 0; row < 5; ++row) {
    table().rms_norm(x.data() + row * 96, weight.data(), 96, 1e-20F, x.data() + row * 96);
  }
  expect_bf16(x, golden_.floats("rmsnorm.y"), 1);
}

TEST_P(GoldenKernels, SparseAttention) {
  const std::vector<float> q = golden_.floats("sparse_attn.q");
  const std::vector<float> kv = golden_.floats("sparse_attn.kv");
  const std::vector<float> sink = golden_.floats("sparse_attn.sink");
  std::vector<int32_t> index(size_t{6} * 150);
  std::memcpy(index.data(), golden_.view("sparse_attn.idx").data, index.size() * sizeof(int32_t));
  for (const bool round : {false, true}) {
    std::vector<float> out(q.size());
    std::vector<float> scratch(attention_scratch_floats(4, 64));
    for (size_t t = 0; t < 6; ++t) {
      std::vector<const std::byte*> rows;
      for (size_t i = 0; i < 150; ++i) {
        const int32_t row = index[t * 150 + i];
        if (row >= 0) rows.push_back(reinterpret_cast<const std::byte*>(kv.data() + ptrdiff_t{row} * 64));
      }
      table().sparse_attention({.q = q.data() + t * 256,
                                .heads = 4,
                                .width = 64,
                                .window = {.rows = rows.data(), .count = rows.size(), .format = RowFormat::kFloat32},
                                .global = {},
                                .sink = sink.data(),
                                .scale = 0.125F,
                                .round_probabilities = round,
                                .out = out.data() + t * 256,
                                .scratch = scratch.data()});
    }
    const std::vector<float> exact = golden_.floats("sparse_attn.out_hp");
    if (!round) {
      expect_near(out, exact, 1e-5F);
      continue;
    }
    for (const std::vector<float>& expected : {exact, golden_.floats("sparse_attn.out")}) {
      double error = 0;
      double norm = 0;
      for (size_t i = 0; i < out.size(); ++i) {
        error += std::pow(static_cast<double>(out[i] - expected[i]), 2);
        norm += std::pow(static_cast<double>(expected[i]), 2);
      }
      EXPECT_LE(std::sqrt(error / norm), 0.004);
    }
  }
}

TEST_P(GoldenKernels, IndexScores) {
  const std::vector<float> q = golden_.floats("indexer.q");
  const std::vector<float> k = golden_.floats("indexer.k");
  // Recorded before the factor width^-0.5 * heads^-0.5, here 1/16 and exact.
  std::vector<float> w = golden_.floats("indexer.w");
  for (float& weight : w)
    weight /= 16;
  for (const bool packed : {false, true}) {
    const RowFormat format = packed ? RowFormat::kFp4Block32 : RowFormat::kFloat32;
    const size_t stride = row_bytes(format, 32);
    std::vector<std::byte> keys(24 * stride);
    for (size_t j = 0; j < 24; ++j) {
      pack_row(format, std::span(k).subspan(j * 32, 32), std::span(keys).subspan(j * stride, stride));
    }
    for (const bool round : {false, true}) {
      std::vector<float> scores(size_t{5} * 24);
      std::vector<float> scratch(index_scratch_floats(32));
      const KeyRun run = {keys.data(), 24};
      for (size_t t = 0; t < 5; ++t) {
        table().index_scores({.q = q.data() + t * 256,
                              .weights = w.data() + t * 8,
                              .heads = 8,
                              .width = 32,
                              .runs = &run,
                              .run_count = 1,
                              .key_stride = stride,
                              .format = format,
                              .round = round,
                              .scores = scores.data() + t * 24,
                              .scratch = scratch.data()});
      }
      if (round) {
        expect_bf16(scores, golden_.floats("indexer.score"), 2);
      } else {
        expect_near(scores, golden_.floats("indexer.score_f64"), 1e-5F);
      }
    }
  }
}

TEST_P(GoldenKernels, Swiglu) {
  const std::vector<float> gate = golden_.floats("swiglu.gate");
  const std::vector<float> up = golden_.floats("swiglu.up");
  const std::vector<float> weight = golden_.floats("swiglu.weight");
  const float limit = golden_.floats("swiglu.limit")[0];
  std::vector<float> y(gate.size());
  for (size_t r = 0; r < 4; ++r) {
    table().swiglu(gate.data() + r * 64, up.data() + r * 64, 64, limit, weight[r], y.data() + r * 64);
  }
  expect_bf16(y, golden_.floats("swiglu.y"), 1);
}

TEST_P(GoldenKernels, HyperConnections) {
  std::vector<float> stream = golden_.floats("hc.stream");
  const std::vector<float> sub = golden_.floats("hc.sub");
  const std::vector<float> pre = golden_.floats("hc.pre");
  const std::vector<float> post = golden_.floats("hc.post");
  const std::vector<float> comb = golden_.floats("hc.comb");
  std::vector<float> collapsed(size_t{6} * 64);
  for (size_t t = 0; t < 6; ++t) {
    table().hc_collapse(stream.data() + t * 256, pre.data() + t * 4, 4, 64, collapsed.data() + t * 64);
    table().hc_expand(stream.data() + t * 256, sub.data() + t * 64, post.data() + t * 4, comb.data() + t * 16, 4, 64);
  }
  expect_bf16(collapsed, golden_.floats("hc.collapsed"), 1);
  expect_bf16(stream, golden_.floats("hc.expanded"), 1);
}

TEST_P(GoldenKernels, Rope) {
  check_rope("rope.window");
  check_rope("rope.yarn");
}

}  // namespace
}  // namespace tidepool::kernels
