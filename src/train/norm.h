#pragma once

#include "train/tape.h"

namespace tidepool {

/// RMSNorm of each row: y = x / sqrt(mean(x^2) + eps) * weight; weight [1, cols].
template <typename Real>
[[nodiscard]] Value<Real> rms_norm(Tape<Real>& tape, const Value<Real>& x, const Value<Real>& weight,
                                   std::type_identity_t<Real> eps);

extern template Value<float> rms_norm(Tape<float>&, const Value<float>&, const Value<float>&, float);
extern template Value<double> rms_norm(Tape<double>&, const Value<double>&, const Value<double>&, double);

}  // namespace tidepool
