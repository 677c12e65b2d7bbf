#pragma once

#include "train/tape.h"

namespace tidepool {

/// y_g = x_g W_g^T for each of `groups` groups of columns: x [rows, groups * in], weight [groups * out, in], y [rows,
/// groups * out]. (docs/model.md 2.3, the output projection)
template <typename Real>
[[nodiscard]] Value<Real> grouped_linear(Tape<Real>& tape, const Value<Real>& x, const Value<Real>& weight,
                                         size_t groups);

extern template Value<float> grouped_linear(Tape<float>&, const Value<float>&, const Value<float>&, size_t);
extern template Value<double> grouped_linear(Tape<double>&, const Value<double>&, const Value<double>&, size_t);

}  // namespace tidepool
