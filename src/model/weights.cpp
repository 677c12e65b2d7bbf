#include "model/weights.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"

namespace tidepool {

const Bf16* bf16_vector(const Checkpoint& checkpoint, const std::string& name) {
  return reinterpret_cast<const Bf16*>(checkpoint.tensor(name).data);
}

namespace {

/// Small vectors steer selection, where a NaN would be passed over in silence instead of reaching the logits.
const float* f32_vector(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView tensor = checkpoint.tensor(name);
  const auto* values = reinterpret_cast<const float*>(tensor.data);
  for (size_t i = 0; i < tensor.bytes / sizeof(float); ++i) {
    if (std::isfinite(values[i])) continue;
    throw Error(ErrorCode::kCorrupt,
                fmt::format("tensor {} holds {} at {}; the file is damaged, download it again", name, values[i], i));
  }
  return values;
}

/// A matrix stored as one bare tensor, without ".weight".
MatrixView f32_matrix(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView tensor = checkpoint.tensor(name);
  return {MatrixFormat::kFloat32, static_cast<size_t>(tensor.shape[0]), static_cast<size_t>(tensor.shape[1]),
          tensor.data, nullptr};
}

HyperConnectionWeights bind_hc(const Checkpoint& checkpoint, const std::string& prefix) {
  return {f32_matrix(checkpoint, prefix + "_fn"), f32_vector(checkpoint, prefix + "_base"),
          f32_vector(checkpoint, prefix + "_scale")};
}

AttentionWeights bind_attention(const Checkpoint& checkpoint, const std::string& prefix, const LayerPlan& plan) {
  AttentionWeights weights;
  weights.wq_a = checkpoint.matrix(prefix + "wq_a");
  weights.q_norm = bf16_vector(checkpoint, prefix + "q_norm.weight");
  weights.wq_b = checkpoint.matrix(prefix + "wq_b");
  weights.wkv = checkpoint.matrix(prefix + "wkv");
  weights.kv_norm = bf16_vector(checkpoint, prefix + "kv_norm.weight");
  weights.sink = f32_vector(checkpoint, prefix + "attn_sink");
  weights.wo_a = checkpoint.matrix(prefix + "wo_a");
  weights.wo_b = checkpoint.matrix(prefix + "wo_b");
  if (plan.mode == LayerMode::kFull) {
    CompressorWeights compressor;
    compressor.wkv = checkpoint.matrix(prefix + "compressor.wkv");
    if (plan.ratio > 1) compressor.wgate = checkpoint.matrix(prefix + "compressor.wgate");
    compressor.norm = bf16_vector(checkpoint, prefix + "compressor.norm.weight");
    weights.compressor = compressor;
    weights.index_key = IndexKeyWeights{checkpoint.matrix(prefix + "indexer.wk"),
                                        bf16_vector(checkpoint, prefix + "indexer.k_norm.weight")};
  }
  if (plan.mode == LayerMode::kFull || plan.mode == LayerMode::kReindex) {
    weights.index_query = IndexQueryWeights{checkpoint.matrix(prefix + "indexer.wq_b"),
                                            checkpoint.matrix(prefix + "indexer.weights_proj")};
  }
  return weights;
}

ExpertWeights bind_expert(const Checkpoint& checkpoint, const std::string& prefix) {
  return {checkpoint.matrix(prefix + "w1"), checkpoint.matrix(prefix + "w3"), checkpoint.matrix(prefix + "w2")};
}

MoeWeights bind_moe(const Checkpoint& checkpoint, const std::string& prefix, size_t experts) {
  MoeWeights weights;
  weights.gate = checkpoint.matrix(prefix + "gate");
  weights.bias = f32_vector(checkpoint, prefix + "gate.bias");
  if (checkpoint.has(prefix + "gate.bias_vl")) weights.bias_vl = f32_vector(checkpoint, prefix + "gate.bias_vl");
  weights.shared = bind_expert(checkpoint, prefix + "shared_experts.");
  for (size_t expert = 0; expert < experts; ++expert) {
    weights.experts.push_back(bind_expert(checkpoint, fmt::format("{}experts.{}.", prefix, expert)));
  }
  return weights;
}

EngramWeights bind_engram(const Checkpoint& checkpoint, const std::string& prefix) {
  EngramWeights weights;
  const TensorView codes = checkpoint.tensor(prefix + "embed.weight");
  weights.codes = codes.data;
  weights.scales = reinterpret_cast<const uint8_t*>(checkpoint.tensor(prefix + "embed.scale").data);
  weights.rows = codes.shape[0];
  weights.wkv = checkpoint.matrix(prefix + "wkv");
  weights.q_weight = bf16_vector(checkpoint, prefix + "q_weight");
  weights.k_weight = bf16_vector(checkpoint, prefix + "k_weight");
  return weights;
}

/// Tells the operating system how weights will be read. What every token needs is fetched at once. Rows of Engram
/// tables are a few KB here and there, where reading ahead would waste what it reads. Experts keep the usual
/// read-ahead: which one is next cannot be known, but each is then read from end to end, and page by page a disk would
/// be slow. Rows of the embedding too are left alone.
void advise_reading(const Checkpoint& checkpoint) {
  for (const Checkpoint::TensorInfo& tensor : checkpoint.tensors()) {
    const auto has = [&](std::string_view part) { return tensor.name.find(part) != std::string::npos; };
    if (has("engram.embed.")) {
      checkpoint.advise(tensor.name, MappedFile::Access::kRandom);
    } else if (!has(".experts.") && !has("embed.")) {
      checkpoint.advise(tensor.name, MappedFile::Access::kWillNeed);
    }
  }
}

}  // namespace

LayerWeights bind_layer(const Checkpoint& checkpoint, const std::string& prefix, const LayerPlan& plan,
                        size_t experts) {
  LayerWeights layer;
  layer.attn_norm = bf16_vector(checkpoint, prefix + "attn_norm.weight");
  layer.ffn_norm = bf16_vector(checkpoint, prefix + "ffn_norm.weight");
  layer.attn_hc = bind_hc(checkpoint, prefix + "hc_attn");
  layer.ffn_hc = bind_hc(checkpoint, prefix + "hc_ffn");
  layer.attention = bind_attention(checkpoint, prefix + "attn.", plan);
  layer.moe = bind_moe(checkpoint, prefix + "ffn.", experts);
  if (plan.engram_slot >= 0) layer.engram = bind_engram(checkpoint, prefix + "engram.");
  return layer;
}

ModelWeights bind_weights(const Checkpoint& checkpoint, const LayerTable& table) {
  advise_reading(checkpoint);
  ModelWeights weights;
  weights.embed = checkpoint.matrix("embed");
  weights.norm = bf16_vector(checkpoint, "norm.weight");
  weights.head = checkpoint.matrix("head");
  if (checkpoint.config().vision) weights.vision = bind_vision_weights(checkpoint);
  const auto experts = static_cast<size_t>(checkpoint.config().n_routed_experts);
  for (const LayerPlan& plan : table.layers)
    weights.layers.push_back(bind_layer(checkpoint, fmt::format("layers.{}.", plan.index), plan, experts));
  return weights;
}

}  // namespace tidepool
