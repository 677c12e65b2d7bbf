#include "kernels/runtime.h"

#include <array>

#include "kernels/kernels_test_support.h"

namespace tidepool {
namespace {

using kernels::testing::Random;

class RuntimeLinear : public kernels::testing::EveryTable {};
INSTANTIATE_TEST_SUITE_P(Kernels, RuntimeLinear, ::testing::ValuesIn(kernels::testing::linear_tables()),
                         kernels::testing::table_name);

TEST_P(RuntimeLinear, GivesTheBitsOfOneCallWhateverTheNumberOfThreads) {
  Random random(1);
  for (const MatrixFormat format :
       {MatrixFormat::kFp8Tile32, MatrixFormat::kFp4Block32, MatrixFormat::kBf16, MatrixFormat::kFloat32}) {
    const auto matrix = kernels::testing::random_matrix(random, format, 1030, 256);
    for (const size_t rows : {1U, 9U}) {
      const std::vector<float> x = kernels::testing::linear_inputs(table(), random, rows * 256);
      const std::vector<float> expected = kernels::testing::run_linear(table(), matrix.view, x, rows);
      for (const size_t threads : {1U, 2U, 5U}) {
        ThreadPool pool(threads);
        std::vector<float> y(rows * 1030, -1.0F);
        linear({pool, table()}, matrix.view, Span2d<const float>(x.data(), rows, 256),
               Span2d<float>(y.data(), rows, 1030));
        for (size_t i = 0; i < y.size(); ++i)
          ASSERT_TRUE(kernels::testing::same_bits(y[i], expected[i])) << i;
      }
    }
  }
}

TEST_P(RuntimeLinear, ManyRowsGiveTheBitsOfEachAlone) {
  constexpr size_t kRows = 113;
  constexpr size_t kOut = 75;
  constexpr size_t kIn = 1120;
  Random random(4);
  ThreadPool pool(3);
  for (const MatrixFormat format :
       {MatrixFormat::kFp8Tile32, MatrixFormat::kFp4Block32, MatrixFormat::kBf16, MatrixFormat::kFloat32}) {
    const auto matrix = kernels::testing::random_matrix(random, format, kOut, kIn);
    const std::vector<float> x = kernels::testing::linear_inputs(table(), random, kRows * kIn);
    std::vector<float> y(kRows * kOut);
    linear({pool, table()}, matrix.view, Span2d<const float>(x.data(), kRows, kIn),
           Span2d<float>(y.data(), kRows, kOut));
    const std::vector<float> in_one_call = kernels::testing::run_linear(table(), matrix.view, x, kRows);
    for (size_t i = 0; i < y.size(); ++i)
      ASSERT_TRUE(kernels::testing::same_bits(y[i], in_one_call[i])) << i;
    for (const size_t r : {0U, 47U, 48U, 100U, 112U}) {
      const auto begin = x.begin() + static_cast<ptrdiff_t>(r * kIn);
      const std::vector<float> row(begin, begin + kIn);
      const std::vector<float> alone = kernels::testing::run_linear(table(), matrix.view, row, 1);
      for (size_t o = 0; o < kOut; ++o)
        ASSERT_TRUE(kernels::testing::same_bits(y[r * kOut + o], alone[o])) << "row " << r << " output " << o;
    }
  }
}

TEST_P(RuntimeLinear, RangesOfRowsThatWerePackedOnceGiveTheBitsOfOneCall) {
  constexpr size_t kOut = 70;
  constexpr size_t kIn = 384;
  Random random(5);
  ThreadPool pool(2);
  for (const MatrixFormat format :
       {MatrixFormat::kFp8Tile32, MatrixFormat::kFp4Block32, MatrixFormat::kBf16, MatrixFormat::kFloat32}) {
    // The second job's rows are too few to be packed.
    const std::array<size_t, 3> row_counts{40, 3, 21};
    const auto matrix = kernels::testing::random_matrix(random, format, kOut, kIn);
    const auto alike = kernels::testing::random_matrix(random, format, kOut, kIn);
    std::vector<std::vector<float>> x;
    std::vector<LinearJob> jobs;
    for (const size_t rows : row_counts) {
      x.push_back(kernels::testing::linear_inputs(table(), random, rows * kIn));
      jobs.push_back({matrix.view, Span2d<const float>(x.back().data(), rows, kIn), {}});
    }
    Arena arena;
    const PackedInputs packed({pool, table()}, jobs, format == MatrixFormat::kBf16 ? &arena : nullptr);
    for (size_t j = 0; j < jobs.size(); ++j) {
      for (const auto* weight : {&matrix, &alike}) {
        std::vector<float> y(row_counts[j] * kOut);
        const LinearJob job{weight->view, jobs[j].x, Span2d<float>(y.data(), row_counts[j], kOut), packed.of(j)};
        linear_range(table(), job, 0, 32);
        linear_range(table(), job, 32, kOut);
        const std::vector<float> expected = kernels::testing::run_linear(table(), weight->view, x[j], row_counts[j]);
        for (size_t i = 0; i < y.size(); ++i)
          ASSERT_TRUE(kernels::testing::same_bits(y[i], expected[i])) << "job " << j << " at " << i;
      }
    }
  }
}

TEST_P(RuntimeLinear, StridedRowsAndNoRows) {
  Random random(2);
  ThreadPool pool(2);
  const auto matrix = kernels::testing::random_matrix(random, MatrixFormat::kBf16, 40, 64);
  const std::vector<float> x = kernels::testing::linear_inputs(table(), random, size_t{3} * 80);
  std::vector<float> y(size_t{3} * 50, 123.0F);
  linear({pool, table()}, matrix.view, Span2d<const float>(x.data(), 3, 64, 80), Span2d<float>(y.data(), 3, 40, 50));
  for (size_t r = 0; r < 3; ++r) {
    const std::vector<float> row(x.begin() + static_cast<ptrdiff_t>(r * 80),
                                 x.begin() + static_cast<ptrdiff_t>(r * 80 + 64));
    const std::vector<float> expected = kernels::testing::run_linear(table(), matrix.view, row, 1);
    for (size_t o = 0; o < 50; ++o)
      EXPECT_EQ(y[r * 50 + o], o < 40 ? expected[o] : 123.0F);
  }
  linear({pool, table()}, matrix.view, Span2d<const float>(nullptr, 0, 64), Span2d<float>(nullptr, 0, 40));
}

TEST(RuntimeLinearDeathTest, ShapesThatDoNotFitAreABug) {
  Random random(3);
  ThreadPool pool(1);
  const auto matrix = kernels::testing::random_matrix(random, MatrixFormat::kBf16, 4, 32);
  std::vector<float> x(31);
  std::vector<float> y(4);
  EXPECT_DEATH(linear({pool, kernels::reference_kernels()}, matrix.view, Span2d<const float>(x.data(), 1, 31),
                      Span2d<float>(y.data(), 1, 4)),
               "shapes");
}

}  // namespace
}  // namespace tidepool
