#pragma once

#include <cstdint>
#include <span>

#include "train/tape.h"

namespace tidepool {

/// What drafts are compared with, one for each row.
template <typename Real>
struct DraftTargets {
  Span2d<const Real> logits;        ///< [rows, vocab]: the backbone's for the same position
  std::span<const int32_t> ids;     ///< the token that came
  std::span<const double> weights;  ///< of the row's loss
};

/// Sums over rows, each times its weight.
struct DraftLoss {
  double total = 0;          ///< 0.1 cross_entropy + 0.9 distance + 1.0 confidence
  double cross_entropy = 0;  ///< -log p_draft(id)
  double distance = 0;       ///< |p_draft - p_backbone|_1
  double confidence = 0;     ///< binary cross-entropy of the confidence with 1 - distance / 2, the rate of acceptance
  double weight = 0;         ///< of all rows
};

/// The published loss of a draft head, of factor 1. Gradients of `logits` [rows, vocab] and `confidence` [rows, 1] (a
/// logit) are added going back; the distance gets none through the confidence. (docs/training.md, "Drafts")
template <typename Real>
[[nodiscard]] DraftLoss draft_loss(Tape<Real>& tape, const Value<Real>& logits, const Value<Real>& confidence,
                                   const DraftTargets<Real>& targets);

extern template DraftLoss draft_loss(Tape<float>&, const Value<float>&, const Value<float>&,
                                     const DraftTargets<float>&);
extern template DraftLoss draft_loss(Tape<double>&, const Value<double>&, const Value<double>&,
                                     const DraftTargets<double>&);

}  // namespace tidepool
