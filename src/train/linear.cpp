#include "train/linear.h"

#include "train/matmul.h"

namespace tidepool {

template <typename Real>
Value<Real> linear(Tape<Real>& tape, const Value<Real>& x, const Value<Real>& weight) {
  const Value<Real> y = tape.make(x.rows(), weight.rows());
  matmul(tape, {x.data, transposed(weight.data), y.data});
  tape.on_backward([&tape, x, weight, y] {
    if (x.wants_grad()) matmul(tape, {y.grad, weight.data, x.grad, Into::kAdd});
    if (weight.wants_grad()) matmul(tape, {transposed(y.grad), x.data, weight.grad, Into::kAdd});
  });
  return y;
}

template Value<float> linear(Tape<float>&, const Value<float>&, const Value<float>&);
template Value<double> linear(Tape<double>&, const Value<double>&, const Value<double>&);

}  // namespace tidepool
