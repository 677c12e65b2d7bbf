#pragma once

#include <deque>
#include <string>
#include <vector>

#include "train/attention_parts.h"
#include "train/index_loss.h"

namespace tidepool {

/// How the indexer learns while the model trains. The defaults are inference.
struct IndexTraining {
  double exploration = 0;  ///< visible entries drawn beside the chosen ones, as a share of index_topk
  uint64_t seed = 0;       ///< of the draws; another one each step
};

/// What crosses layers in one pass over a batch: which rows are which, the global KV of each source, what was selected.
/// Every reader of a source's entries adds to the one gradient they have. Outlives the pass, and its model outlives it.
template <typename Real>
struct SharedAttention {
  /// Makes the angles of the batch's positions known to the model. Rows see the last `window` rows, themselves
  /// included; 0: as many as the config says.
  SharedAttention(AttentionModel<Real>& shared_model, const TokenBatch& batch, const IndexTraining& training = {},
                  size_t window = 0);
  SharedAttention(const SharedAttention&) = delete;
  SharedAttention& operator=(const SharedAttention&) = delete;
  ~SharedAttention() = default;

  /// The rows that one half of the layers runs over.
  struct Half {
    BatchRows rows;
    std::vector<uint32_t> positions;  ///< of each row
    std::vector<RowRange> windows;    ///< rows that each row's window holds
  };
  [[nodiscard]] const Half& half(const LayerPlan& plan) const { return plan.is_decoder ? decoder : encoder; }

  /// Global KV that one Full layer owns.
  struct Source {
    EntryRows rows;
    std::vector<uint32_t> positions;  ///< that entries are turned by
    Value<Real> entries;              ///< [entries, head_dim]; without data until they are made
    Value<Real> keys;                 ///< [entries, index_head_dim]
  };

  /// A selection, made by `layer` from `inputs`.
  struct Chosen {
    size_t layer = 0;
    IndexInputs<Real> inputs;
    SelectedEntries<Real> selection;
  };

  AttentionModel<Real>* model;
  IndexTraining index_training;
  Half encoder;
  Half decoder;
  std::deque<Source> sources;  ///< by kv_slot
  std::vector<Chosen> chosen;  ///< in the order of layers; the last one is read
  CandidateBlocks pool;
};

/// One layer's attention.
template <typename Real>
struct AttentionLayer {
  const LayerPlan& plan;
  const AttentionParameters<Real>& parameters;
};

/// Makes the global KV that a Full layer owns, from its normalised attention input x, whole samples of it: all rows of
/// the batch, in the decoder's first layer too.
template <typename Real>
void make_global_kv(Tape<Real>& tape, const AttentionLayer<Real>& layer, const Value<Real>& x,
                    SharedAttention<Real>& shared);

/// attention(x), [rows, d] both, for the rows of the layer's half. The global KV of its source is made before. Leaves
/// what Full and Reindex layers select in `shared`.
template <typename Real>
[[nodiscard]] Value<Real> attention(Tape<Real>& tape, const AttentionLayer<Real>& layer, const Value<Real>& x,
                                    SharedAttention<Real>& shared);

/// The rows of x, all rows of the batch, that the decoder runs over.
template <typename Real>
[[nodiscard]] Value<Real> take_decoder_rows(Tape<Real>& tape, const Value<Real>& x,
                                            const SharedAttention<Real>& shared);

/// The loss of one layer's indexer, a mean over its rows.
struct IndexDivergence {
  size_t layer = 0;
  double mean = 0;
};

/// The losses of all indexers, each times `weight` among the gradients. Call behind the last layer.
template <typename Real>
[[nodiscard]] std::vector<IndexDivergence> index_losses(Tape<Real>& tape, const SharedAttention<Real>& shared,
                                                        double weight);

#define TIDEPOOL_FOR_REAL(Real)                                                                                 \
  extern template struct SharedAttention<Real>;                                                                 \
  extern template void make_global_kv(Tape<Real>&, const AttentionLayer<Real>&, const Value<Real>&,             \
                                      SharedAttention<Real>&);                                                  \
  extern template Value<Real> attention(Tape<Real>&, const AttentionLayer<Real>&, const Value<Real>&,           \
                                        SharedAttention<Real>&);                                                \
  extern template Value<Real> take_decoder_rows(Tape<Real>&, const Value<Real>&, const SharedAttention<Real>&); \
  extern template std::vector<IndexDivergence> index_losses(Tape<Real>&, const SharedAttention<Real>&, double)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
