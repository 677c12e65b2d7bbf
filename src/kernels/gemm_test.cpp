#include "kernels/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/kernels_test_support.h"

namespace tidepool::kernels {
namespace {

using testing::Random;

std::vector<const GemmKernel*> all_kernels() {
  std::vector<const GemmKernel*> kernels(available_gemm_kernels().begin(), available_gemm_kernels().end());
  if (emulated_amx_gemm_kernel() != nullptr) kernels.push_back(emulated_amx_gemm_kernel());
  return kernels;
}

class EveryGemm : public ::testing::TestWithParam<const GemmKernel*> {};
std::string kernel_name(const ::testing::TestParamInfo<const GemmKernel*>& info) {
  return std::string(info.param->name);
}
INSTANTIATE_TEST_SUITE_P(Kernels, EveryGemm, ::testing::ValuesIn(all_kernels()), kernel_name);

struct Shape {
  size_t m;
  size_t k;
  size_t n;
};

/// A matrix of random values with rows a little apart, as a factor.
struct Factor {
  std::vector<float> values;
  GemmOperand operand;

  Factor(Random& random, size_t rows, size_t cols, bool is_transposed) {
    const size_t stored_rows = is_transposed ? cols : rows;
    const size_t stored_cols = is_transposed ? rows : cols;
    values = random.values(stored_rows * (stored_cols + 3));
    operand = {Span2d<const float>(values.data(), stored_rows, stored_cols, stored_cols + 3), is_transposed};
  }
  [[nodiscard]] float at(size_t row, size_t col) const {
    return operand.is_transposed ? operand.matrix.at(col, row) : operand.matrix.at(row, col);
  }
};

/// Compares with sums in binary64 of the factors as the kernel may round them. Sums of k terms in binary32, in any
/// order, are off by at most k + 1 half units of the sum of magnitudes.
void expect_product(const GemmKernel& kernel, const Factor& a, const Factor& b, const std::vector<float>& before,
                    const std::vector<float>& c) {
  const bool rounds = kernel.precision == GemmPrecision::kBf16;
  const auto factor = [&](float value) { return static_cast<double>(rounds ? round_bf16(value) : value); };
  const size_t n = b.operand.cols();
  for (size_t i = 0; i < a.operand.rows(); ++i) {
    for (size_t j = 0; j < n; ++j) {
      double sum = before.empty() ? 0 : before[i * n + j];
      double magnitudes = std::fabs(sum);
      for (size_t k = 0; k < a.operand.cols(); ++k) {
        const double term = factor(a.at(i, k)) * factor(b.at(k, j));
        sum += term;
        magnitudes += std::fabs(term);
      }
      const double bound = static_cast<double>(a.operand.cols() + 1) * 0x1p-24 * magnitudes;
      ASSERT_NEAR(c[i * n + j], sum, bound) << kernel.name << " at " << i << ", " << j;
    }
  }
}

TEST_P(EveryGemm, EqualsSumsInBinary64InEveryFormAndRaggedShape) {
  Random random(1);
  ThreadPool pool(2);
  GemmWorkspace workspace;
  for (const Shape shape : {Shape{1, 1, 1},
                            {14, 32, 32},
                            {15, 33, 31},
                            {32, 64, 16},
                            {33, 1, 65},
                            {3, 517, 50},
                            {70, 1025, 17},
                            {29, 100, 130}}) {
    for (const bool a_transposed : {false, true}) {
      for (const bool b_transposed : {false, true}) {
        const Factor a(random, shape.m, shape.k, a_transposed);
        const Factor b(random, shape.k, shape.n, b_transposed);
        std::vector<float> c(shape.m * shape.n, NAN);
        GemmJob job{a.operand, b.operand, {c.data(), shape.m, shape.n}};
        multiply_all(pool, *GetParam(), {&job, 1}, workspace);
        expect_product(*GetParam(), a, b, {}, c);
        const std::vector<float> before = c;
        job.adds = true;
        multiply_all(pool, *GetParam(), {&job, 1}, workspace);
        expect_product(*GetParam(), a, b, before, c);
      }
    }
  }
}

TEST_P(EveryGemm, SumsDependNeitherOnThreadsNorOnNeighbours) {
  Random random(2);
  const Factor a(random, 75, 700, false);
  const Factor b(random, 700, 90, true);
  std::vector<float> alone(size_t{75} * 90);
  GemmWorkspace workspace;
  ThreadPool one(1);
  const GemmJob job{a.operand, b.operand, {alone.data(), 75, 90}};
  multiply_all(one, *GetParam(), {&job, 1}, workspace);

  // Rows 20 to 40 of it in another job, beside a third one, on more threads.
  ThreadPool three(3);
  std::vector<float> whole(alone.size());
  std::vector<float> part(size_t{20} * 90);
  std::vector<float> other(size_t{75} * 75);
  const std::vector<GemmJob> jobs = {{a.operand, b.operand, {whole.data(), 75, 90}},
                                     {{a.operand.matrix.row_range(20, 20), false}, b.operand, {part.data(), 20, 90}},
                                     {a.operand, {a.operand.matrix, true}, {other.data(), 75, 75}}};
  multiply_all(three, *GetParam(), jobs, workspace);
  EXPECT_EQ(whole, alone);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), alone.begin() + std::ptrdiff_t{20} * 90));
}

TEST_P(EveryGemm, SumsWithoutTermsAreZeroAndNothingIsAddedByThem) {
  ThreadPool pool(1);
  GemmWorkspace workspace;
  std::vector<float> c = {1, 2, 3, 4};
  GemmJob job{{Span2d<const float>(c.data(), 2, 0)}, {Span2d<const float>(c.data(), 0, 2)}, {c.data(), 2, 2}, true};
  multiply_all(pool, *GetParam(), {&job, 1}, workspace);
  EXPECT_EQ(c, (std::vector<float>{1, 2, 3, 4}));
  job.adds = false;
  multiply_all(pool, *GetParam(), {&job, 1}, workspace);
  EXPECT_EQ(c, std::vector<float>(4));
}

TEST_P(EveryGemm, ANanReachesItsRowAndColumnOnly) {
  ThreadPool pool(1);
  GemmWorkspace workspace;
  Random random(3);
  Factor a(random, 20, 40, false);
  const Factor b(random, 40, 40, false);
  a.values[5 * 43 + 7] = NAN;
  std::vector<float> c(size_t{20} * 40);
  const GemmJob job{a.operand, b.operand, {c.data(), 20, 40}};
  multiply_all(pool, *GetParam(), {&job, 1}, workspace);
  for (size_t i = 0; i < c.size(); ++i)
    EXPECT_EQ(std::isnan(c[i]), i / 40 == 5) << i;
}

TEST_P(EveryGemm, InfinitiesAreAsInSumsInBinary64) {
  ThreadPool pool(1);
  GemmWorkspace workspace;
  Random random(4);
  Factor a(random, 20, 70, false);
  Factor b(random, 70, 37, true);
  a.values[7 * 73 + 69] = INFINITY;
  b.values[11 * 73 + 69] = -INFINITY;
  b.values[12 * 73 + 69] = 0;
  std::vector<float> c(size_t{20} * 37);
  const GemmJob job{a.operand, b.operand, {c.data(), 20, 37}};
  multiply_all(pool, *GetParam(), {&job, 1}, workspace);
  for (size_t i = 0; i < 20; ++i) {
    for (size_t j = 0; j < 37; ++j) {
      const double last = static_cast<double>(a.at(i, 69)) * static_cast<double>(b.at(69, j));
      const float actual = c[i * 37 + j];
      EXPECT_TRUE(std::isfinite(last) ? std::isfinite(actual) : testing::same_bits(actual, static_cast<float>(last)))
          << i << ", " << j << ": " << actual;
    }
  }
}

/// Products in bfloat16 count subnormal factors as zero; others are as exact below 2^-126 as binary32 is.
TEST_P(EveryGemm, SubnormalFactorsAreFlushedOnlyByProductsInBf16) {
  ThreadPool pool(1);
  GemmWorkspace workspace;
  constexpr size_t kTerms = 37;
  std::vector<float> a(size_t{17} * kTerms, 0x1p-133F);
  std::vector<float> b(kTerms * 33, 0x1p120F);
  std::vector<float> c(size_t{17} * 33, NAN);
  const GemmJob by_left{
      {Span2d<const float>(a.data(), 17, kTerms)}, {Span2d<const float>(b.data(), kTerms, 33)}, {c.data(), 17, 33}};
  const bool flushes = GetParam()->precision == GemmPrecision::kBf16;
  const std::vector<float> expected(c.size(), flushes ? 0.0F : kTerms * 0x1p-13F);
  multiply_all(pool, *GetParam(), {&by_left, 1}, workspace);
  EXPECT_EQ(c, expected);
  std::ranges::fill(a, 0x1p120F);
  std::ranges::fill(b, 0x1p-133F);
  multiply_all(pool, *GetParam(), {&by_left, 1}, workspace);
  EXPECT_EQ(c, expected);
}

TEST_P(EveryGemm, ProductsWithoutRowsOrColumnsAndNoProductsWriteNothing) {
  ThreadPool pool(2);
  GemmWorkspace workspace;
  std::vector<float> values(36, 1.0F);
  std::vector<float> c(36, 7.0F);
  const auto matrix = [&](size_t rows, size_t cols) {
    return GemmOperand{Span2d<const float>(values.data(), rows, cols)};
  };
  multiply_all(pool, *GetParam(), {}, workspace);
  const std::vector<GemmJob> jobs = {{matrix(0, 5), matrix(5, 6), {c.data(), 0, 6}},
                                     {matrix(6, 5), matrix(5, 0), {c.data(), 6, 0}},
                                     {matrix(0, 0), matrix(0, 0), {c.data(), 0, 0}}};
  multiply_all(pool, *GetParam(), jobs, workspace);
  EXPECT_EQ(c, std::vector<float>(36, 7.0F));
  // Nor do they keep the one beside them from being computed.
  std::vector<GemmJob> mixed = jobs;
  mixed.push_back({matrix(6, 5), matrix(5, 6), {c.data(), 6, 6}});
  multiply_all(pool, *GetParam(), mixed, workspace);
  EXPECT_EQ(c, std::vector<float>(36, 5.0F));
}

TEST(Gemm, SelectsNoMoreRoundingThanAllowed) {
  EXPECT_EQ(select_gemm_kernel(GemmPrecision::kFloat32).precision, GemmPrecision::kFloat32);
  EXPECT_EQ(&select_gemm_kernel(GemmPrecision::kBf16), available_gemm_kernels().front());
}

}  // namespace
}  // namespace tidepool::kernels
