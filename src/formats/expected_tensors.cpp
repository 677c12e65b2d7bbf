#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "formats/checkpoint.h"

namespace tidepool {
namespace {

using Part = ExpectedTensor::Part;

/// The released tensor table, one function per block of it. (docs/formats.md)
class TensorTable {
 public:
  explicit TensorTable(const ModelConfig& config) : config_(config) {}

  [[nodiscard]] std::vector<ExpectedTensor> make() && {
    const ModelConfig& c = config_;
    part_ = Part::kBackbone;
    add("embed.weight", Dtype::kBf16, {c.vocab_size, c.hidden_size});
    add("norm.weight", Dtype::kBf16, {c.hidden_size});
    add("head.weight", Dtype::kBf16, {c.vocab_size, c.hidden_size});
    for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer)
      add_layer(layer);
    if (c.engram) add_engram(*c.engram);
    if (c.dspark) add_dspark(*c.dspark);
    if (c.vision) add_vision(*c.vision);
    return std::move(table_);
  }

 private:
  void add(std::string name, Dtype dtype, std::vector<int64_t> shape) {
    table_.push_back({std::move(name), dtype, std::move(shape), part_});
  }

  /// FP8 linear: a scale per 32x32 tile.
  void add_fp8(const std::string& name, int64_t out, int64_t in) {
    add(name + ".weight", Dtype::kF8E4m3, {out, in});
    add(name + ".scale", Dtype::kF8E8m0, {(out + 31) / 32, (in + 31) / 32});
  }

  /// FP4 linear: two codes a byte, a scale per row and 32 columns.
  void add_fp4(const std::string& name, int64_t out, int64_t in) {
    add(name + ".weight", Dtype::kI8, {out, in / 2});
    add(name + ".scale", Dtype::kF8E8m0, {out, in / 32});
  }

  /// What backbone layers and draft stages have alike; `block` ends in a point.
  void add_block(const std::string& block, int64_t experts) {
    const ModelConfig& c = config_;
    const int64_t mixes = c.hc_mult * (2 + c.hc_mult);  // pre, post and the combination matrix
    for (const std::string sublayer : {"attn", "ffn"}) {
      add(block + sublayer + "_norm.weight", Dtype::kBf16, {c.hidden_size});
      add(block + "hc_" + sublayer + "_fn", Dtype::kF32, {mixes, c.hc_mult * c.hidden_size});
      add(block + "hc_" + sublayer + "_base", Dtype::kF32, {mixes});
      add(block + "hc_" + sublayer + "_scale", Dtype::kF32, {3});
    }
    add_attention(block + "attn.");
    add_experts(block + "ffn.", experts);
  }

  void add_attention(const std::string& attention) {
    const ModelConfig& c = config_;
    const int64_t heads_width = c.num_attention_heads * c.head_dim;
    add_fp8(attention + "wq_a", c.q_lora_rank, c.hidden_size);
    add(attention + "q_norm.weight", Dtype::kBf16, {c.q_lora_rank});
    add_fp8(attention + "wq_b", heads_width, c.q_lora_rank);
    add_fp8(attention + "wkv", c.head_dim, c.hidden_size);
    add(attention + "kv_norm.weight", Dtype::kBf16, {c.head_dim});
    add(attention + "attn_sink", Dtype::kF32, {c.num_attention_heads});
    add_fp8(attention + "wo_a", c.o_groups * c.o_lora_rank, heads_width / c.o_groups);
    add_fp8(attention + "wo_b", c.hidden_size, c.o_groups * c.o_lora_rank);
  }

  void add_experts(const std::string& ffn, int64_t experts) {
    const ModelConfig& c = config_;
    add(ffn + "gate.weight", Dtype::kBf16, {experts, c.hidden_size});
    add(ffn + "gate.bias", Dtype::kF32, {experts});
    if (c.vision) {
      const Part block_part = std::exchange(part_, part_ == Part::kBackbone ? Part::kVision : part_);
      add(ffn + "gate.bias_vl", Dtype::kF32, {experts});
      part_ = block_part;
    }
    add_fp8(ffn + "shared_experts.w1", c.moe_intermediate_size, c.hidden_size);
    add_fp8(ffn + "shared_experts.w2", c.hidden_size, c.moe_intermediate_size);
    add_fp8(ffn + "shared_experts.w3", c.moe_intermediate_size, c.hidden_size);
    for (int64_t expert = 0; expert < experts; ++expert) {
      const std::string prefix = fmt::format("{}experts.{}.", ffn, expert);
      add_fp4(prefix + "w1", c.moe_intermediate_size, c.hidden_size);
      add_fp4(prefix + "w2", c.hidden_size, c.moe_intermediate_size);
      add_fp4(prefix + "w3", c.moe_intermediate_size, c.hidden_size);
    }
  }

  void add_layer(int64_t layer) {
    const ModelConfig& c = config_;
    const std::string block = fmt::format("layers.{}.", layer);
    add_block(block, c.n_routed_experts);
    const auto is_in = [layer](const std::vector<int64_t>& ids) {
      return std::find(ids.begin(), ids.end(), layer) != ids.end();
    };
    if (is_in(c.kv_source_layer_ids)) {
      const std::string compressor = block + "attn.compressor.";
      add(compressor + "wkv.weight", Dtype::kBf16, {c.head_dim, c.hidden_size});
      if (c.compress_ratios[static_cast<size_t>(layer)] > 1) {
        add(compressor + "wgate.weight", Dtype::kBf16, {c.head_dim, c.hidden_size});
      }
      add(compressor + "norm.weight", Dtype::kBf16, {c.head_dim});
      add(block + "attn.indexer.wk.weight", Dtype::kBf16, {c.index_head_dim, c.head_dim});
      add(block + "attn.indexer.k_norm.weight", Dtype::kBf16, {c.index_head_dim});
    }
    if (is_in(c.index_source_layer_ids)) {
      add_fp8(block + "attn.indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank);
      add(block + "attn.indexer.weights_proj.weight", Dtype::kBf16, {c.index_n_heads, c.hidden_size});
    }
  }

  void add_engram(const EngramConfig& engram) {
    const ModelConfig& c = config_;
    part_ = Part::kEngram;
    const int64_t orders = engram.max_ngram_size - 1;  // 2-grams and up
    for (size_t i = 0; i < engram.layer_ids.size(); ++i) {
      const std::string prefix = fmt::format("layers.{}.engram.", engram.layer_ids[i]);
      const int64_t rows = engram.num_embeddings[i];
      add(prefix + "embed.weight", Dtype::kF8E4m3, {rows, engram.head_dim});
      add(prefix + "embed.scale", Dtype::kF8E8m0, {rows, engram.head_dim / 32});
      // A key per residual stream and one value.
      add_fp8(prefix + "wkv", (c.hc_mult + 1) * c.hidden_size, orders * engram.n_heads * engram.head_dim);
      add(prefix + "q_weight", Dtype::kBf16, {c.hc_mult, c.hidden_size});
      add(prefix + "k_weight", Dtype::kBf16, {c.hc_mult, c.hidden_size});
    }
  }

  void add_dspark(const DsparkConfig& dspark) {
    const ModelConfig& c = config_;
    part_ = Part::kDspark;
    for (int64_t stage = 0; stage < dspark.num_layers; ++stage) {
      add_block(fmt::format("mtp.{}.", stage), dspark.n_routed_experts);
    }
    add_fp8("mtp.0.main_proj", c.hidden_size, static_cast<int64_t>(dspark.target_layer_ids.size()) * c.hidden_size);
    add("mtp.0.main_norm.weight", Dtype::kBf16, {c.hidden_size});
    const std::string last = fmt::format("mtp.{}.", dspark.num_layers - 1);
    add(last + "norm.weight", Dtype::kBf16, {c.hidden_size});
    add(last + "markov_head.embed.weight", Dtype::kBf16, {c.vocab_size, dspark.markov_rank});
    add(last + "markov_head.head.weight", Dtype::kBf16, {c.vocab_size, dspark.markov_rank});
    add(last + "confidence_head.proj.weight", Dtype::kBf16, {1, c.hidden_size + dspark.markov_rank});
  }

  void add_biased(const std::string& name, int64_t out, int64_t in) {
    add(name + ".weight", Dtype::kBf16, {out, in});
    add(name + ".bias", Dtype::kBf16, {out});
  }

  void add_vision(const VisionConfig& vision) {
    const int64_t width = vision.hidden_size;
    const int64_t text_width = config_.hidden_size;
    part_ = Part::kVision;
    add_biased("vision.patch_embed.proj", width, 3 * vision.patch_size * vision.patch_size);
    for (int64_t i = 0; i < vision.num_hidden_layers; ++i) {
      const std::string block = fmt::format("vision.blocks.{}.", i);
      add(block + "norm1.weight", Dtype::kBf16, {width});
      add(block + "norm2.weight", Dtype::kBf16, {width});
      add_biased(block + "attn.wqkv", 3 * width, width);
      add_biased(block + "attn.wo", width, width);
      add(block + "mlp.w1.weight", Dtype::kBf16, {2 * vision.intermediate_size, width});
      add(block + "mlp.w2.weight", Dtype::kBf16, {width, vision.intermediate_size});
    }
    add("vision.norm.weight", Dtype::kBf16, {width});
    add_biased("aligner.w1", text_width, width * vision.downsample_ratio * vision.downsample_ratio);
    add_biased("aligner.w2", text_width, text_width);
    for (const char* name : {"image_start", "image_end", "image_newline"})
      add(name, Dtype::kBf16, {text_width});
  }

  const ModelConfig& config_;
  Part part_ = Part::kBackbone;
  std::vector<ExpectedTensor> table_;
};

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  return TensorTable(config).make();
}

}  // namespace tidepool
