#include "train/grouped_linear.h"

#include <vector>

#include "base/check.h"
#include "train/matmul.h"

namespace tidepool {

namespace {

/// Columns of group `group`.
template <typename Real>
Span2d<Real> group_of(const Span2d<Real>& matrix, size_t groups, size_t group) {
  const size_t cols = matrix.cols / groups;
  return matrix.col_range(group * cols, cols);
}

template <typename Real>
Span2d<Real> rows_of(const Span2d<Real>& weight, size_t groups, size_t group) {
  const size_t rows = weight.rows / groups;
  return weight.row_range(group * rows, rows);
}

}  // namespace

template <typename Real>
Value<Real> grouped_linear(Tape<Real>& tape, const Value<Real>& x, const Value<Real>& weight, size_t groups) {
  TIDEPOOL_CHECK(x.cols() == groups * weight.cols() && weight.rows() % groups == 0, "groups that do not fit");
  const Value<Real> y = tape.make(x.rows(), weight.rows());
  std::vector<MatrixProduct<Real>> products;
  products.reserve(groups);
  for (size_t g = 0; g < groups; ++g) {
    products.push_back(
        {group_of(x.data, groups, g), transposed(rows_of(weight.data, groups, g)), group_of(y.data, groups, g)});
  }
  matmul_all<Real>(tape, products);
  tape.on_backward([&tape, x, weight, y, groups] {
    std::vector<MatrixProduct<Real>> gradients;
    gradients.reserve(2 * groups);
    for (size_t g = 0; g < groups; ++g) {
      const Span2d<Real> dy = group_of(y.grad, groups, g);
      if (x.wants_grad())
        gradients.push_back({dy, rows_of(weight.data, groups, g), group_of(x.grad, groups, g), Into::kAdd});
      if (weight.wants_grad())
        gradients.push_back({transposed(dy), group_of(x.data, groups, g), rows_of(weight.grad, groups, g), Into::kAdd});
    }
    matmul_all<Real>(tape, gradients);
  });
  return y;
}

template Value<float> grouped_linear(Tape<float>&, const Value<float>&, const Value<float>&, size_t);
template Value<double> grouped_linear(Tape<double>&, const Value<double>&, const Value<double>&, size_t);

}  // namespace tidepool
