#pragma once

#include <vector>

#include "train/draft_loss.h"
#include "train/model.h"

namespace tidepool {

/// Tensors of the draft head, and those of the backbone that it shares and leaves as they are. (docs/model.md 2.9)
template <typename Real>
struct DraftParameters {
  const Parameter<Real>* main_proj = nullptr;
  const Parameter<Real>* main_norm = nullptr;
  std::vector<BlockParameters<Real>> stages;
  const Parameter<Real>* norm = nullptr;
  const Parameter<Real>* markov_embed = nullptr;
  const Parameter<Real>* markov_head = nullptr;
  const Parameter<Real>* confidence = nullptr;
  const Parameter<Real>* embed = nullptr;  ///< the backbone's
  const Parameter<Real>* head = nullptr;   ///< the backbone's
};

/// Finds them. The config has a draft head.
template <typename Real>
[[nodiscard]] DraftParameters<Real> bind_draft(const ParameterSet<Real>& parameters, const ModelConfig& config);

/// Blocks of drafts. Block b stands behind the decoder's row rows[b], the last position that was read; its first row
/// holds the token that came next, the anchor.
struct DraftBatch {
  std::vector<size_t> rows;         ///< of the decoder, one a block
  std::vector<int32_t> tokens;      ///< [blocks * size]: the token at each of a block's positions, the anchor first
  std::vector<int32_t> targets;     ///< [blocks * size]: the token behind each
  std::vector<size_t> target_rows;  ///< [blocks * size]: the decoder's row whose logits foresee that token
  std::vector<double> weights;      ///< [blocks * size]: of each row's loss; their sum is 1
};

/// Blocks behind `count` random positions of the batch (all there are, where there are fewer), ascending. Weights are
/// exp(-i / 4) for the i-th draft, times the batch's weight of its token. (docs/training.md, "Drafts")
[[nodiscard]] DraftBatch choose_draft_blocks(const TokenBatch& batch, const BatchRows& decoder, size_t block_size,
                                             size_t count, uint64_t seed);

/// What the draft head gives for each row of a batch of blocks.
template <typename Real>
struct DraftOutput {
  Value<Real> base_logits;  ///< [rows, vocab], before the Markov bias
  Value<Real> logits;       ///< [rows, vocab]
  Value<Real> confidence;   ///< [rows, 1], logits
  BiasLoads loads;          ///< of all routed experts, by the name of their bias
  double balance_loss = 0;
};

/// What the head reads of the backbone; it gets no gradient.
template <typename Real>
struct DraftSource {
  const BatchRows* decoder = nullptr;  ///< the rows of taps; outlives the pass
  std::vector<Value<Real>> taps;       ///< [decoder rows, d] each: mean streams entering the tapped layers
};

/// Runs the draft head over blocks. `balance_weight` as in MoeTraining. A block sees the window of the last position
/// read, and all of itself.
template <typename Real>
[[nodiscard]] DraftOutput<Real> run_draft(Tape<Real>& tape, AttentionModel<Real>& model,
                                          const DraftParameters<Real>& parameters, const DraftSource<Real>& source,
                                          const DraftBatch& blocks, double balance_weight);

/// The loss of what run_draft() gave; `hidden` [decoder rows, d] is what the backbone's logits are made of, its final
/// norm's result.
template <typename Real>
[[nodiscard]] DraftLoss draft_losses(Tape<Real>& tape, const AttentionModel<Real>& model,
                                     const DraftParameters<Real>& parameters, const Value<Real>& hidden,
                                     const DraftBatch& blocks, const DraftOutput<Real>& output);

#define TIDEPOOL_FOR_REAL(Real)                                                                                  \
  extern template DraftParameters<Real> bind_draft(const ParameterSet<Real>&, const ModelConfig&);               \
  extern template DraftOutput<Real> run_draft(Tape<Real>&, AttentionModel<Real>&, const DraftParameters<Real>&,  \
                                              const DraftSource<Real>&, const DraftBatch&, double);              \
  extern template DraftLoss draft_losses(Tape<Real>&, const AttentionModel<Real>&, const DraftParameters<Real>&, \
                                         const Value<Real>&, const DraftBatch&, const DraftOutput<Real>&)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
