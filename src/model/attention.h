#pragma once

#include "model/compressor.h"
#include "model/draft_fault.h"
#include "model/forward_pass.h"
#include "model/indexer.h"
#include "model/layer_table.h"
#include "model/math.h"
#include "model/weights.h"

namespace tidepool {

/// Sizes of attention that every layer shares.
struct AttentionConfig {
  size_t heads = 0;
  size_t head_dim = 0;
  size_t rope_dim = 0;
  size_t groups = 0;  ///< of the output projection
  float norm_eps = 0;
  size_t index_heads = 0;
  size_t index_head_dim = 0;
  size_t index_topk = 0;
  CandidatePoolConfig candidates;
  bool unscaled_rope_position = false;  ///< test hook, see GlobalKvWriter
  DraftFault draft_fault = DraftFault::kNone;
};

/// CSA2 attention of one layer. (docs/model.md 2.3, docs/numerics.md)
struct Attention {
  const Math& math;
  const AttentionConfig& config;
  const AttentionWeights& weights;
  const LayerPlan& plan;
  const RopeTables& ropes;
};

/// Global KV and index keys that the rows complete, from the normalised attention input x [rows, d]. Only for Full
/// layers; the decoder's first layer has this done for all prompt rows at the end of the encoder.
void write_layer_global_kv(const Attention& attention, const ForwardPass& pass, Span2d<const float> x);

/// Writes the window rows of x [rows, d] (on the activation grid), and does nothing else: what a draft stage keeps of
/// the backbone.
void write_window_rows(const Attention& attention, const ForwardPass& pass, Span2d<const float> x);

/// y = attention(x), [rows, d] both: window rows are written to the sequences (those of a
/// draft block are not); the selection of Full and Reindex layers
/// is left in the pass. Global KV must be written before.
void attend(const Attention& attention, ForwardPass& pass, Span2d<const float> x, Span2d<float> y);

}  // namespace tidepool
