#pragma once

#include <cstdint>
#include <vector>

#include "formats/checkpoint.h"
#include "model/draft_fault.h"
#include "model/layer_table.h"
#include "model/moe.h"
#include "model/weights.h"

namespace tidepool {

/// What a draft head reads beside the backbone's embedding and output head. (docs/model.md 2.9)
struct DraftWeights {
  MatrixView main_proj;             ///< [d, taps * d]: the backbone's streams to a row that the stages' windows keep
  const Bf16* main_norm = nullptr;  ///< [d]
  std::vector<LayerWeights> stages;
  const Bf16* norm = nullptr;  ///< [d], before the output head
  MatrixView markov_embed;     ///< W1, [vocab, rank]
  MatrixView markov_head;      ///< W2, [vocab, rank]
  MatrixView confidence;       ///< [1, d + rank]
};

/// DSpark, the draft head: a few small blocks that propose the next tokens all at once, from what the last layers of
/// the backbone read.
struct DraftHead {
  DraftWeights weights;
  MoeConfig moe;
  std::vector<LayerPlan> stages;  ///< one a stage; its index is that of its window in a sequence
  size_t block = 0;               ///< positions proposed at once
  int32_t noise_id = 0;           ///< token at the positions behind the first
};

/// Finds the tensors of the head that `checkpoint` has (its config says so). `checkpoint` must outlive the result.
[[nodiscard]] DraftHead make_draft_head(const Checkpoint& checkpoint, const LayerTable& table, DraftFault fault);

}  // namespace tidepool
