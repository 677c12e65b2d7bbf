#pragma once

#include "train/tape.h"

namespace tidepool {

/// h = silu(min(gate, limit)) * clamp(up, +-limit) * weight of the row; limit 0 means no clamp. gate and up
/// [rows, inner], weight [rows, 1]. Values at or beyond the limit get no gradient.
template <typename Real>
[[nodiscard]] Value<Real> swiglu(Tape<Real>& tape, const Value<Real>& gate, const Value<Real>& up,
                                 const Value<Real>& weight, std::type_identity_t<Real> limit);

extern template Value<float> swiglu(Tape<float>&, const Value<float>&, const Value<float>&, const Value<float>&, float);
extern template Value<double> swiglu(Tape<double>&, const Value<double>&, const Value<double>&, const Value<double>&,
                                     double);

}  // namespace tidepool
