#include "formats/row_format.h"
#include "kernels/kernels_test_support.h"

// The widths of the release, a few outputs of each matrix: nothing may depend on small shapes. Sums have thousands of
// terms, and rows are more than packing buffers and tiles take at once.

namespace tidepool::kernels {
namespace {

using testing::OwnedMatrix;
using testing::Random;

class ReleasedWidth : public testing::EveryTable {};
INSTANTIATE_TEST_SUITE_P(Kernels, ReleasedWidth, ::testing::ValuesIn(testing::linear_tables()), testing::table_name);

struct Matrix {
  const char* name;
  MatrixFormat format;
  size_t in;
};
/// Every width that a matrix takes in. (docs/formats.md, "config.json")
constexpr Matrix kMatrices[] = {
    {"w1, w3", MatrixFormat::kFp4Block32, 5120},   {"w2", MatrixFormat::kFp4Block32, 2304},
    {"wq_a, wkv", MatrixFormat::kFp8Tile32, 5120}, {"wq_b", MatrixFormat::kFp8Tile32, 1280},
    {"wo_a", MatrixFormat::kFp8Tile32, 4096},      {"wo_b", MatrixFormat::kFp8Tile32, 8192},
    {"shared w2", MatrixFormat::kFp8Tile32, 2304}, {"head, gate", MatrixFormat::kBf16, 5120},
    {"hc_fn", MatrixFormat::kFloat32, 20480},
};

void expect_exact_within_rounding(const OwnedMatrix& matrix, const std::vector<float>& x, size_t rows,
                                  const std::vector<float>& y) {
  const MatrixView& w = matrix.view;
  std::vector<float> weights(w.in);
  // Each addition may be off by 2^-24 of the sum so far; errors of n of them grow like the root of n, and eight times
  // that is not met by chance.
  const double tolerance = 8 * std::sqrt(static_cast<double>(w.in)) * 0x1p-24;
  for (size_t o = 0; o < w.out; ++o) {
    dequantise_row(w, o, weights);
    for (size_t r = 0; r < rows; ++r) {
      double sum = 0;
      double magnitude = 0;
      for (size_t i = 0; i < w.in; ++i) {
        const double product = static_cast<double>(weights[i]) * static_cast<double>(x[r * w.in + i]);
        sum += product;
        magnitude += std::fabs(product);
      }
      ASSERT_NEAR(y[r * w.out + o], sum, tolerance * magnitude) << "row " << r << " output " << o;
    }
  }
}

TEST_P(ReleasedWidth, ProductsOfEveryMatrixAreExactWithinRounding) {
  Random random(1);
  for (const Matrix& shape : kMatrices) {
    SCOPED_TRACE(shape.name);
    const OwnedMatrix matrix = testing::random_matrix(random, shape.format, 35, shape.in);
    for (const size_t rows : {1U, 5U}) {
      const std::vector<float> x = testing::linear_inputs(table(), random, rows * shape.in);
      expect_exact_within_rounding(matrix, x, rows, testing::run_linear(table(), matrix.view, x, rows));
    }
  }
}

TEST_P(ReleasedWidth, ARowIsTheSameAloneAndAmongAHundred) {
  Random random(2);
  constexpr size_t kRows = 100;
  for (const Matrix& shape : kMatrices) {
    SCOPED_TRACE(shape.name);
    const OwnedMatrix matrix = testing::random_matrix(random, shape.format, 19, shape.in);
    const std::vector<float> x = testing::linear_inputs(table(), random, kRows * shape.in);
    const std::vector<float> together = testing::run_linear(table(), matrix.view, x, kRows);
    for (size_t r = 0; r < kRows; r += 9) {
      const auto begin = x.begin() + static_cast<ptrdiff_t>(r * shape.in);
      const std::vector<float> alone =
          testing::run_linear(table(), matrix.view, {begin, begin + static_cast<ptrdiff_t>(shape.in)}, 1);
      for (size_t o = 0; o < alone.size(); ++o)
        ASSERT_TRUE(testing::same_bits(alone[o], together[r * 19 + o])) << "row " << r << " output " << o;
    }
  }
}

/// A window of FP8 rows and as many global entries as the indexer selects.
TEST_P(ReleasedWidth, AttentionOfAllHeadsToWindowAndSelectionAgreesWithTheReference) {
  constexpr size_t kHeads = 64;
  constexpr size_t kWidth = 512;
  constexpr size_t kWindow = 128;
  constexpr size_t kGlobal = 512;
  Random random(4);
  const auto pack_rows = [&](RowFormat format, size_t count, std::vector<std::byte>& storage) {
    const size_t bytes = row_bytes(format, kWidth);
    storage.resize(count * bytes);
    std::vector<const std::byte*> rows;
    for (size_t j = 0; j < count; ++j) {
      rows.push_back(storage.data() + j * bytes);
      pack_row(format, random.values(kWidth, 3), std::span(storage).subspan(j * bytes, bytes));
    }
    return rows;
  };
  std::vector<std::byte> storage[2];
  const std::vector<const std::byte*> window = pack_rows(RowFormat::kFp8Block32, kWindow, storage[0]);
  const std::vector<const std::byte*> global = pack_rows(RowFormat::kFp4Block16, kGlobal, storage[1]);
  std::vector<float> q = random.values(kHeads * kWidth, 2);
  reference_kernels().round_bf16(q.data(), q.size());
  const std::vector<float> sink = random.values(kHeads, 4);
  for (const bool round : {true, false}) {
    const auto attend = [&](const KernelTable& kernels) {
      std::vector<float> out(q.size(), 99.0F);
      std::vector<float> scratch(attention_scratch_floats(kHeads, kWidth));
      kernels.sparse_attention({.q = q.data(),
                                .heads = kHeads,
                                .width = kWidth,
                                .window = {window.data(), kWindow, RowFormat::kFp8Block32},
                                .global = {global.data(), kGlobal, RowFormat::kFp4Block16},
                                .sink = sink.data(),
                                .scale = 1 / std::sqrt(static_cast<float>(kWidth)),
                                .round_probabilities = round,
                                .out = out.data(),
                                .scratch = scratch.data()});
      return out;
    };
    const std::vector<float> expected = attend(reference_kernels());
    const std::vector<float> actual = attend(table());
    // As in attention_test.cpp: some probabilities next to a rounding boundary fall to the other side, each by 2^-9 of
    // itself.
    const float tolerance = round ? 1e-4F : 2e-5F;
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(actual[i], expected[i], tolerance) << "head " << i / kWidth << " column " << i % kWidth;
  }
}

TEST_P(ReleasedWidth, IndexScoresOfThousandsOfKeysAgreeWithTheReference) {
  constexpr size_t kHeads = 32;
  constexpr size_t kWidth = 128;
  constexpr size_t kCount = 3001;
  Random random(3);
  const size_t key_bytes = row_bytes(RowFormat::kFp4Block32, kWidth);
  std::vector<std::byte> keys(kCount * key_bytes);
  for (size_t j = 0; j < kCount; ++j)
    pack_row(RowFormat::kFp4Block32, random.values(kWidth, 3), std::span(keys).subspan(j * key_bytes, key_bytes));
  std::vector<float> q(kHeads * kWidth);
  for (size_t h = 0; h < kHeads; ++h) {
    std::vector<std::byte> row(key_bytes);
    pack_row(RowFormat::kFp4Block32, random.values(kWidth, 3), row);
    unpack_row(RowFormat::kFp4Block32, row, std::span(q).subspan(h * kWidth, kWidth));
  }
  const std::vector<float> weights = random.values(kHeads);
  const auto score = [&](const KernelTable& kernels) {
    std::vector<float> scores(kCount);
    std::vector<float> scratch(index_scratch_floats(kWidth));
    const KeyRun run = {keys.data(), kCount};
    kernels.index_scores({.q = q.data(),
                          .weights = weights.data(),
                          .heads = kHeads,
                          .width = kWidth,
                          .runs = &run,
                          .run_count = 1,
                          .key_stride = key_bytes,
                          .format = RowFormat::kFp4Block32,
                          .scores = scores.data(),
                          .scratch = scratch.data()});
    return scores;
  };
  const std::vector<float> expected = score(reference_kernels());
  const std::vector<float> actual = score(table());
  // Each head sums 128 products of up to 9, and the 32 heads are added: 2^-24 of some hundreds a step.
  for (size_t j = 0; j < kCount; ++j)
    ASSERT_NEAR(actual[j], expected[j], 2e-3F) << j;
}

}  // namespace
}  // namespace tidepool::kernels
