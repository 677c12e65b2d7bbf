#pragma once

#include <cstdint>
#include <span>

#include "train/tape.h"

namespace tidepool {

/// What the next tokens are, and how much each of them counts.
struct PredictionTargets {
  std::span<const int32_t> ids;    ///< one per row
  std::span<const float> weights;  ///< factor of the row's loss; rows of weight 0 are not computed
};

/// Loss of a batch.
template <typename Real>
struct CrossEntropy {
  double loss = 0;                   ///< the sum of row losses times weights
  std::span<const Real> row_losses;  ///< -log p(target) of each row, in nats; 0 where the weight is 0
};

/// The loss of predicting `targets` from logits x head^T: x [rows, d], head [vocab, d].
///
/// Rows are worked off in chunks of kHeadRows, so logits of more than a chunk never exist. A chunk's logits are gone
/// before anything is gone back over, so both gradients are those of the loss as it is (of factor 1): that of `head` is
/// added during the call, that of x when the tape goes back.
template <typename Real>
[[nodiscard]] CrossEntropy<Real> cross_entropy(Tape<Real>& tape, const Value<Real>& x, const Value<Real>& head,
                                               const PredictionTargets& targets);
inline constexpr size_t kHeadRows = 256;

extern template CrossEntropy<float> cross_entropy(Tape<float>&, const Value<float>&, const Value<float>&,
                                                  const PredictionTargets&);
extern template CrossEntropy<double> cross_entropy(Tape<double>&, const Value<double>&, const Value<double>&,
                                                   const PredictionTargets&);

}  // namespace tidepool
