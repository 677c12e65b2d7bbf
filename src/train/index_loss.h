#pragma once

#include "train/index_selection.h"

namespace tidepool {

/// What the indexer learns from: its scores over what was selected should foresee the attention that the selected
/// entries then got. (docs/training.md, "Attention")
template <typename Real>
struct IndexLoss {
  IndexInputs<Real> inputs;
  SelectedEntries<Real> selection;  ///< with the attention of all layers that read it
  Real scale = 1;                   ///< of the loss of a row
};

/// The sum over rows of KL(p || softmax(s)): p is the row's attention to its selected entries with sum 1, s their index
/// scores. Rows that select nothing count nothing. Going back adds `scale` times its gradients by q, weights and keys;
/// attention gets none. Call behind the last layer that reads the selection.
template <typename Real>
[[nodiscard]] double index_loss(Tape<Real>& tape, const IndexLoss<Real>& loss);

extern template double index_loss(Tape<float>&, const IndexLoss<float>&);
extern template double index_loss(Tape<double>&, const IndexLoss<double>&);

}  // namespace tidepool
