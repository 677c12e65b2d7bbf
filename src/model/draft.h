#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"

namespace tidepool {

/// Writes the rows of a decoder pass into the windows of the draft stages: each is made of the streams that entered the
/// tapped layers (pass.taps). Only with a draft head. (docs/model.md 2.9, docs/numerics.md)
void write_draft_rows(const Model& model, const Math& math, const ForwardPass& pass);

/// Whether drafts can be made behind `state`: its draft windows reach its last position.
[[nodiscard]] bool has_draft_rows(const SequenceState& state);

/// A sequence to draft for.
struct DraftRequest {
  SequenceState* state = nullptr;  ///< is not changed; has_draft_rows()
  int32_t anchor = 0;              ///< the next token, taken but not read yet
};

/// What one pass of the draft head gives: a block of rows for each request, row i for the i-th token behind the anchor.
struct DraftBlocks {
  Span2d<float> hidden;  ///< [requests * block, d], before the final norm
  Span2d<float> logits;  ///< [requests * block, vocab], before the Markov bias
};

/// Runs the draft head for any number of sequences at once; a block does not depend on the others. The result lies in
/// `arena` until the caller's scope of it ends.
[[nodiscard]] DraftBlocks run_draft_blocks(const Model& model, const Runtime& runtime, Arena& arena,
                                           std::span<const DraftRequest> requests);

/// The Markov head: logits.row(i) += W2 W1[previous[i]], where previous[i] is the token before that position.
void add_markov_bias(const Model& model, const Runtime& runtime, Arena& arena, std::span<const int32_t> previous,
                     Span2d<float> logits);

/// The confidence head: for each row of `hidden`, with the token before it, the logit of the probability that its token
/// is accepted.
[[nodiscard]] std::vector<float> draft_confidences(const Model& model, const Runtime& runtime, Arena& arena,
                                                   Span2d<const float> hidden, std::span<const int32_t> previous);

}  // namespace tidepool
