#pragma once

#include <span>

#include "model/candidate_pool.h"
#include "model/forward_pass.h"
#include "model/layer_table.h"
#include "model/math.h"
#include "model/weights.h"

namespace tidepool {

/// The learned indexer of a Full or Reindex layer: which global entries each row attends to. (docs/model.md 2.4, 2.5)
struct Indexer {
  const Math& math;
  const IndexQueryWeights& weights;
  const LayerPlan& plan;
  size_t heads = 0;     ///< index query heads
  size_t width = 0;     ///< of an index query or key
  size_t rope_dim = 0;  ///< last values of a head that are rotated
  size_t topk = 0;      ///< entries each row attends to, at most
  CandidatePoolConfig candidates;
};

/// Fills pass.selection for every row and, in the layer that makes it, pass.candidates. Global KV of the layer's source
/// must be written for all rows. query_latent [rows, q_rank] is the normalised query latent on the activation grid, x
/// [rows, d] the normalised attention input. Where everything visible fits, nothing is scored.
void select_entries(const Indexer& indexer, ForwardPass& pass, Span2d<const float> query_latent, Span2d<const float> x);

}  // namespace tidepool
