#pragma once

#include <span>
#include <type_traits>

#include "train/tape.h"

namespace tidepool {

/// A matrix as a factor of a product: itself, or transposed.
template <typename Real>
struct Factor {
  Span2d<const Real> matrix;
  bool is_transposed = false;

  Factor(Span2d<const Real> matrix_in, bool is_transposed_in) : matrix(matrix_in), is_transposed(is_transposed_in) {}
  Factor(Span2d<const Real> matrix_in) : Factor(matrix_in, false) {}  // NOLINT(*-explicit-*): a matrix is a factor
  Factor(Span2d<Real> matrix_in) : Factor(matrix_in, false) {}        // NOLINT(*-explicit-*)

  [[nodiscard]] size_t rows() const { return is_transposed ? matrix.cols : matrix.rows; }
  [[nodiscard]] size_t cols() const { return is_transposed ? matrix.rows : matrix.cols; }
};

template <typename Real>
[[nodiscard]] Factor<std::remove_const_t<Real>> transposed(Span2d<Real> matrix) {
  return {matrix, true};
}

/// Whether a product takes the place of what its result held, or is added to it.
enum class Into : uint8_t { kReplace, kAdd };

/// c (+)= a b, of shapes [m, k], [k, n] and [m, n]. c may not overlap a or b.
template <typename Real>
struct MatrixProduct {
  Factor<Real> a;
  Factor<Real> b;
  Span2d<Real> c;
  Into into = Into::kReplace;
};

/// All products in one go over the tape's threads, in the tape's precision. Sums take their terms in a fixed order,
/// whatever the number of threads. No product may read or write what another one writes. Records nothing.
template <typename Real>
void matmul_all(Tape<Real>& tape, std::span<const MatrixProduct<Real>> products);

/// One of them.
template <typename Real>
void matmul(Tape<Real>& tape, const std::type_identity_t<MatrixProduct<Real>>& product) {
  matmul_all<Real>(tape, {&product, 1});
}

extern template void matmul_all(Tape<float>&, std::span<const MatrixProduct<float>>);
extern template void matmul_all(Tape<double>&, std::span<const MatrixProduct<double>>);

}  // namespace tidepool
