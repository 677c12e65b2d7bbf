#include "train/newton_schulz.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "train/gradient_check.h"

namespace tidepool {
namespace {

/// Singular values of a matrix of no more columns than rows, ascending, by one-sided Jacobi rotations: pairs of columns
/// are turned until all are orthogonal; their norms are the singular values.
std::vector<double> singular_values(std::vector<std::vector<double>> columns) {
  const size_t n = columns.size();
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) {
        double pp = 0;
        double qq = 0;
        double pq = 0;
        for (size_t i = 0; i < columns[p].size(); ++i) {
          pp += columns[p][i] * columns[p][i];
          qq += columns[q][i] * columns[q][i];
          pq += columns[p][i] * columns[q][i];
        }
        if (pq == 0) continue;
        const double zeta = (qq - pp) / (2 * pq);
        const double t = (zeta >= 0 ? 1 : -1) / (std::fabs(zeta) + std::sqrt(1 + zeta * zeta));
        const double c = 1 / std::sqrt(1 + t * t);
        for (size_t i = 0; i < columns[p].size(); ++i) {
          const double left = columns[p][i];
          columns[p][i] = c * left - c * t * columns[q][i];
          columns[q][i] = c * t * left + c * columns[q][i];
        }
      }
    }
  }
  std::vector<double> values;
  for (const std::vector<double>& column : columns) {
    double squares = 0;
    for (const double value : column)
      squares += value * value;
    values.push_back(std::sqrt(squares));
  }
  std::ranges::sort(values);
  return values;
}

std::vector<double> singular_values_of(const Span2d<float>& matrix) {
  const bool is_wide = matrix.cols > matrix.rows;
  const size_t n = std::min(matrix.rows, matrix.cols);
  std::vector<std::vector<double>> columns(n, std::vector<double>(std::max(matrix.rows, matrix.cols)));
  for (size_t row = 0; row < matrix.rows; ++row) {
    for (size_t col = 0; col < matrix.cols; ++col)
      (is_wide ? columns[row][col] : columns[col][row]) = matrix.at(row, col);
  }
  return singular_values(std::move(columns));
}

struct Shape {
  size_t rows;
  size_t cols;
};

TEST(NewtonSchulz, SingularValuesEndWithinTheSettledBand) {
  // The eight fast steps leave values within some 30 % of 1, from 1e-3 of the norm up; 2 x - 1.5 x^3 + 0.5 x^5 has the
  // fixed point 1 with slope 0, and two steps of it bring 0.7 to 0.96 and 1.3 to 1.00.
  TestRandom random(1);
  ThreadPool pool(2);
  kernels::GemmWorkspace workspace;
  kernels::GemmWorkspace scratch;
  for (const auto precision : {kernels::GemmPrecision::kFloat32, kernels::GemmPrecision::kBf16}) {
    std::vector<Leaf<float>> leaves;
    std::vector<Span2d<float>> matrices;
    for (const Shape shape : {Shape{24, 40}, {40, 24}, {32, 32}, {1, 20}}) {
      leaves.emplace_back(random, shape.rows, shape.cols);
      matrices.push_back(leaves.back().value().data);
    }
    orthogonalise({pool, kernels::select_gemm_kernel(precision), workspace, scratch}, matrices);
    for (const Span2d<float>& matrix : matrices) {
      const std::vector<double> values = singular_values_of(matrix);
      EXPECT_GT(values.front(), 0.9);
      EXPECT_LT(values.back(), 1.1);
    }
  }
}

TEST(NewtonSchulz, KeepsTheDirectionsOfASignedDiagonal) {
  // Of a diagonal matrix the nearest orthogonal one has the signs of the diagonal.
  Leaf<float> leaf(3, 3);
  leaf.data() = {4, 0, 0, 0, -1, 0, 0, 0, 0.5F};
  ThreadPool pool(1);
  kernels::GemmWorkspace workspace;
  kernels::GemmWorkspace scratch;
  const Span2d<float> matrix = leaf.value().data;
  orthogonalise({pool, kernels::select_gemm_kernel(kernels::GemmPrecision::kFloat32), workspace, scratch},
                {&matrix, 1});
  for (size_t i = 0; i < 9; ++i)
    EXPECT_NEAR(leaf.data()[i], i == 0 || i == 8 ? 1 : (i == 4 ? -1 : 0), 0.05) << i;
}

TEST(NewtonSchulz, AZeroMatrixStaysZero) {
  Leaf<float> leaf(2, 5);
  ThreadPool pool(1);
  kernels::GemmWorkspace workspace;
  kernels::GemmWorkspace scratch;
  const Span2d<float> matrix = leaf.value().data;
  orthogonalise({pool, kernels::select_gemm_kernel(kernels::GemmPrecision::kFloat32), workspace, scratch},
                {&matrix, 1});
  EXPECT_EQ(leaf.data(), std::vector<float>(10));
}

}  // namespace
}  // namespace tidepool
