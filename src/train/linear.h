#pragma once

#include "train/tape.h"

namespace tidepool {

/// y = x W^T: x [rows, in], weight [out, in] as released, y [rows, out].
template <typename Real>
[[nodiscard]] Value<Real> linear(Tape<Real>& tape, const Value<Real>& x, const Value<Real>& weight);

extern template Value<float> linear(Tape<float>&, const Value<float>&, const Value<float>&);
extern template Value<double> linear(Tape<double>&, const Value<double>&, const Value<double>&);

}  // namespace tidepool
