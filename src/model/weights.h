#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/bf16.h"
#include "formats/checkpoint.h"
#include "model/layer_table.h"
#include "model/vision_weights.h"

namespace tidepool {

/// Hyper-connection parameters of one sub-block: F [2n + n*n, n*d], base [2n + n*n], scale [3] (pre, post, comb).
struct HyperConnectionWeights {
  MatrixView fn;
  const float* base = nullptr;
  const float* scale = nullptr;
};

/// What makes global entries of tokens. (docs/model.md 2.2)
struct CompressorWeights {
  MatrixView wkv;
  MatrixView wgate;            ///< ratio > 1 only
  const Bf16* norm = nullptr;  ///< [head_dim]
};

/// What makes index keys of global entries. (docs/model.md 2.4)
struct IndexKeyWeights {
  MatrixView wk;
  const Bf16* k_norm = nullptr;  ///< [index_head_dim]
};

/// What scores index keys. (docs/model.md 2.4)
struct IndexQueryWeights {
  MatrixView wq_b;          ///< from the query latent to all heads
  MatrixView weights_proj;  ///< from the attention input to a weight per head
};

/// Attention of one layer; matrices are [out, in]. (docs/model.md 2.3)
struct AttentionWeights {
  MatrixView wq_a;
  const Bf16* q_norm = nullptr;
  MatrixView wq_b;
  MatrixView wkv;
  const Bf16* kv_norm = nullptr;
  const float* sink = nullptr;  ///< [heads]
  MatrixView wo_a;              ///< [groups * rank, heads / groups * head_dim]
  MatrixView wo_b;
  std::optional<CompressorWeights> compressor;   ///< layers that own global KV
  std::optional<IndexKeyWeights> index_key;      ///< the same layers
  std::optional<IndexQueryWeights> index_query;  ///< Full and Reindex layers
};

/// One SwiGLU expert: w2 (silu(w1 x) * (w3 x)).
struct ExpertWeights {
  MatrixView w1;  ///< gate
  MatrixView w3;  ///< up
  MatrixView w2;  ///< down
};

/// Router and experts of one layer. (docs/model.md 2.7)
struct MoeWeights {
  MatrixView gate;                 ///< the router, [experts, d]
  const float* bias = nullptr;     ///< [experts], for text positions; steers selection only
  const float* bias_vl = nullptr;  ///< the same for image positions; null without vision
  ExpertWeights shared;
  std::vector<ExpertWeights> experts;
};

/// Table and projections of one Engram layer. (docs/model.md 2.8)
struct EngramWeights {
  const std::byte* codes = nullptr;  ///< E4M3 [rows, head_dim]
  const uint8_t* scales = nullptr;   ///< E8M0 [rows, head_dim / 32]
  int64_t rows = 0;
  MatrixView wkv;                  ///< [(streams + 1) * d, columns * head_dim]: a key per stream, then the value
  const Bf16* q_weight = nullptr;  ///< [streams, d]
  const Bf16* k_weight = nullptr;
};

/// Everything one layer reads.
struct LayerWeights {
  const Bf16* attn_norm = nullptr;
  const Bf16* ffn_norm = nullptr;
  HyperConnectionWeights attn_hc;
  HyperConnectionWeights ffn_hc;
  AttentionWeights attention;
  MoeWeights moe;
  std::optional<EngramWeights> engram;
};

/// The backbone's tensors, bound by released name, read where the checkpoint maps them.
struct ModelWeights {
  MatrixView embed;
  std::vector<LayerWeights> layers;
  const Bf16* norm = nullptr;
  MatrixView head;
  std::optional<VisionWeights> vision;  ///< where the checkpoint can see
};

/// Finds every tensor of the backbone. `checkpoint` must outlive the result.
[[nodiscard]] ModelWeights bind_weights(const Checkpoint& checkpoint, const LayerTable& table);

/// Finds the tensors of one block, whose names begin with `prefix` ("layers.3.", "mtp.0.").
[[nodiscard]] LayerWeights bind_layer(const Checkpoint& checkpoint, const std::string& prefix, const LayerPlan& plan,
                                      size_t experts);

/// A tensor of type BF16.
[[nodiscard]] const Bf16* bf16_vector(const Checkpoint& checkpoint, const std::string& name);

}  // namespace tidepool
