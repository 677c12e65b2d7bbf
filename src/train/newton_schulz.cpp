#include "train/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tidepool {

namespace {

struct Coefficients {
  float a;
  float b;
  float c;
};

/// (arXiv 2606.19348 and 2609.19969: the Muon of V4 and V4.1.)
constexpr Coefficients kFast = {3.4445F, -4.7750F, 2.0315F};
constexpr Coefficients kSettling = {2.0F, -1.5F, 0.5F};
constexpr int kFastSteps = 8;
constexpr int kSettlingSteps = 2;

/// A matrix with no more rows than columns, so that products with its transpose are small, and what a step needs.
struct Work {
  Span2d<float> m;        ///< [r, c], r <= c
  Span2d<float> gram;     ///< M M^T, [r, r]
  Span2d<float> square;   ///< its square; then b gram + c square
  Span2d<float> product;  ///< [r, c]
};

void scale_to_unit_norm(const Span2d<float>& m) {
  double squares = 0;
  for (size_t row = 0; row < m.rows; ++row) {
    for (const float value : m.row(row))
      squares += static_cast<double>(value) * static_cast<double>(value);
  }
  constexpr double kNothing = 1e-60;  // the norm's inverse would be more than binary32 holds
  if (squares < kNothing) {
    for (size_t row = 0; row < m.rows; ++row)
      std::ranges::fill(m.row(row), 0.0F);
    return;
  }
  const auto factor = static_cast<float>(1 / std::sqrt(squares));
  for (size_t row = 0; row < m.rows; ++row) {
    for (float& value : m.row(row))
      value *= factor;
  }
}

void step(const MatrixMath& math, std::span<const Work> all, Coefficients k) {
  const auto multiply = [&](auto make_job) {
    std::vector<kernels::GemmJob> jobs;
    jobs.reserve(all.size());
    for (const Work& work : all)
      jobs.push_back(make_job(work));
    kernels::multiply_all(math.pool, math.gemm, jobs, math.workspace);
  };
  multiply([](const Work& w) { return kernels::GemmJob{{w.m}, {w.m, true}, w.gram}; });
  multiply([](const Work& w) { return kernels::GemmJob{{w.gram}, {w.gram}, w.square}; });
  math.pool.run(all.size(), [&](size_t index, size_t) {
    const Work& w = all[index];
    for (size_t row = 0; row < w.gram.rows; ++row) {
      for (size_t col = 0; col < w.gram.cols; ++col)
        w.square.at(row, col) = k.b * w.gram.at(row, col) + k.c * w.square.at(row, col);
    }
  });
  multiply([](const Work& w) { return kernels::GemmJob{{w.square}, {w.m}, w.product}; });
  math.pool.run(all.size(), [&](size_t index, size_t) {
    const Work& w = all[index];
    for (size_t row = 0; row < w.m.rows; ++row) {
      float* m = w.m.row(row).data();
      const float* product = w.product.row(row).data();
      for (size_t col = 0; col < w.m.cols; ++col)
        m[col] = k.a * m[col] + product[col];
    }
  });
}

void copy_transposed(const Span2d<float>& from, const Span2d<float>& to) {
  for (size_t row = 0; row < from.rows; ++row) {
    for (size_t col = 0; col < from.cols; ++col)
      to.at(col, row) = from.at(row, col);
  }
}

}  // namespace

void orthogonalise(const MatrixMath& math, std::span<const Span2d<float>> matrices) {
  size_t values = 0;
  for (const Span2d<float>& matrix : matrices) {
    const size_t rows = std::min(matrix.rows, matrix.cols);
    values += 2 * (rows * rows + matrix.rows * matrix.cols);
  }
  auto* const memory = reinterpret_cast<float*>(math.scratch.take(values * sizeof(float)));
  size_t used = 0;
  const auto take = [&](size_t rows, size_t cols) {
    const Span2d<float> taken(memory + used, rows, cols);
    used += rows * cols;
    return taken;
  };
  std::vector<Work> all;
  all.reserve(matrices.size());
  for (const Span2d<float>& matrix : matrices) {
    const size_t rows = std::min(matrix.rows, matrix.cols);
    const size_t cols = std::max(matrix.rows, matrix.cols);
    const Span2d<float> turned = take(rows, cols);
    all.push_back({matrix.rows > matrix.cols ? turned : matrix, take(rows, rows), take(rows, rows), take(rows, cols)});
  }
  math.pool.run(all.size(), [&](size_t index, size_t) {
    if (matrices[index].rows > matrices[index].cols) copy_transposed(matrices[index], all[index].m);
    scale_to_unit_norm(all[index].m);
  });
  for (int i = 0; i < kFastSteps; ++i)
    step(math, all, kFast);
  for (int i = 0; i < kSettlingSteps; ++i)
    step(math, all, kSettling);
  math.pool.run(all.size(), [&](size_t index, size_t) {
    if (matrices[index].rows > matrices[index].cols) copy_transposed(all[index].m, matrices[index]);
  });
}

}  // namespace tidepool
