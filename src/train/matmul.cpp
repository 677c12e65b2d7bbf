#include "train/matmul.h"

#include <vector>

#include "base/check.h"
#include "train/row_blocks.h"

namespace tidepool {

namespace {

double value_at(const Factor<double>& factor, size_t row, size_t col) {
  return factor.is_transposed ? factor.matrix.at(col, row) : factor.matrix.at(row, col);
}

/// The plain form, for checking derivatives.
void multiply_one(Tape<double>& tape, const MatrixProduct<double>& product) {
  TIDEPOOL_CHECK(product.a.cols() == product.b.rows(), "a product of matrices that do not fit");
  TIDEPOOL_CHECK(product.c.rows == product.a.rows() && product.c.cols == product.b.cols(),
                 "a product into a matrix of another shape");
  for_row_blocks(tape, product.c.rows, product.c.cols * product.a.cols(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      for (size_t j = 0; j < product.c.cols; ++j) {
        double sum = product.into == Into::kAdd ? product.c.at(i, j) : 0;
        for (size_t k = 0; k < product.a.cols(); ++k)
          sum += value_at(product.a, i, k) * value_at(product.b, k, j);
        product.c.at(i, j) = sum;
      }
    }
  });
}

void multiply(Tape<double>& tape, std::span<const MatrixProduct<double>> products) {
  for (const MatrixProduct<double>& product : products)
    multiply_one(tape, product);
}

void multiply(Tape<float>& tape, std::span<const MatrixProduct<float>> products) {
  std::vector<kernels::GemmJob> jobs;
  jobs.reserve(products.size());
  for (const MatrixProduct<float>& product : products) {
    jobs.push_back({.a = {product.a.matrix, product.a.is_transposed},
                    .b = {product.b.matrix, product.b.is_transposed},
                    .c = product.c,
                    .adds = product.into == Into::kAdd});
  }
  kernels::multiply_all(tape.pool(), tape.gemm(), jobs, tape.gemm_workspace());
}

}  // namespace

template <typename Real>
void matmul_all(Tape<Real>& tape, std::span<const MatrixProduct<Real>> products) {
  multiply(tape, products);
}

template void matmul_all(Tape<float>&, std::span<const MatrixProduct<float>>);
template void matmul_all(Tape<double>&, std::span<const MatrixProduct<double>>);

}  // namespace tidepool
