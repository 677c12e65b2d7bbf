#pragma once

#include <vector>

#include "formats/bf16.h"
#include "formats/checkpoint.h"

namespace tidepool {

/// y = W x + bias.
struct BiasedLinear {
  MatrixView weight;
  const Bf16* bias = nullptr;  ///< [out]
};

/// One block of the vision tower, d its width.
struct VisionBlockWeights {
  const Bf16* norm1 = nullptr;
  BiasedLinear wqkv;  ///< [3 d, d]: queries of all heads, then keys, then values
  BiasedLinear wo;    ///< [d, d]
  const Bf16* norm2 = nullptr;
  MatrixView w1;  ///< [2 inner, d]: gate, then up
  MatrixView w2;  ///< [d, inner]
};

/// The vision tower, the aligner behind it, and the learned embeddings of a span's delimiters. (docs/model.md 4)
struct VisionWeights {
  BiasedLinear patch_embed;  ///< [d, 3 patch^2]
  std::vector<VisionBlockWeights> blocks;
  const Bf16* norm = nullptr;
  BiasedLinear aligner_w1;  ///< from the patches of a cell to the text model's width
  BiasedLinear aligner_w2;
  const Bf16* start = nullptr;  ///< these three [hidden]
  const Bf16* newline = nullptr;
  const Bf16* end = nullptr;
};

/// Finds them in a checkpoint whose config has a vision part, which must outlive the result.
[[nodiscard]] VisionWeights bind_vision_weights(const Checkpoint& checkpoint);

}  // namespace tidepool
