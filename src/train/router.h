#pragma once

#include <span>

#include "train/moe.h"

namespace tidepool {

/// What the router of a layer decided.
template <typename Real>
struct Routing {
  Value<Real> scores;               ///< [rows, experts], sqrt(softplus(logit))
  Value<Real> weights;              ///< [rows, k], of the chosen experts
  std::span<const int32_t> chosen;  ///< [rows, k], by falling score + bias
  size_t k = 0;
};

/// Scores of `logits` and the choice of k experts a row. Gradients of the weights go back to the logits.
template <typename Real>
[[nodiscard]] Routing<Real> route(Tape<Real>& tape, const MoeTraining& training, const MoeParameters<Real>& parameters,
                                  const Value<Real>& logits, const MoeRows& rows);

/// The balance loss of MoeTraining; its gradient goes to the scores.
template <typename Real>
[[nodiscard]] double balance_loss(Tape<Real>& tape, double weight, const Routing<Real>& routing,
                                  std::span<const SampleRows> samples);

#define TIDEPOOL_FOR_REAL(Real)                                                                                        \
  extern template Routing<Real> route(Tape<Real>&, const MoeTraining&, const MoeParameters<Real>&, const Value<Real>&, \
                                      const MoeRows&);                                                                 \
  extern template double balance_loss(Tape<Real>&, double, const Routing<Real>&, std::span<const SampleRows>)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
