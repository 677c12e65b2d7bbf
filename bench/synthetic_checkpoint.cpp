#include "bench/synthetic_checkpoint.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "base/file.h"
#include "formats/bf16.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"

namespace tidepool::bench {

namespace {

/// The released values except where the cut changes them. (docs/formats.md, "config.json")
constexpr const char* kConfig = R"({{
  "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
  "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": {image},
  "quantization_config": {{"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                          "scale_fmt": "ue8m0", "expert_dtype": "fp4"}},
  "text_config": {{
    "model_type": "deepseek_v41_text", "vocab_size": {vocab}, "hidden_size": 5120, "moe_intermediate_size": 2304,
    "num_hidden_layers": 4, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
    "qk_rope_head_dim": 64, "q_lora_rank": 1280, "o_lora_rank": 1024, "o_groups": 8, "hidden_act": "silu",
    "swiglu_limit": 10.0, "rms_norm_eps": 1e-20, "attention_bias": false, "attention_dropout": 0.0,
    "initializer_range": 0.02, "use_cache": true, "tie_word_embeddings": false, "max_position_embeddings": 1048576,
    "rope_theta": 10000,
    "rope_scaling": {{"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 65536}},
    "n_routed_experts": {experts}, "n_shared_experts": 1, "num_experts_per_tok": 6, "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 1.5, "sliding_window": 128,
    "compress_ratios": [0, 2, 1, 1], "compress_rope_theta": 160000, "kv_source_layer_ids": [1, 2],
    "index_source_layer_ids": [1, 2, 3], "index_n_heads": 32, "index_head_dim": 128, "index_topk": 512,
    "candidate_source_layer_id": 2, "candidate_topk_blocks": 2048, "candidate_block_size": 8, "hc_mult": 4,
    "hc_sinkhorn_iters": 20, "hc_eps": 1e-06, "engram_layer_ids": [], "engram_num_embeddings": [],
    "engram_max_ngram_size": 4, "engram_vocab_size": 16000000, "engram_n_heads": 8, "engram_head_dim": 256,
    "engram_pad_token_id": 2, "engram_compressed_vocab_size": 99092, "num_nextn_predict_layers": 0,
    "dspark_block_size": 0, "dspark_noise_token_id": 0, "dspark_target_layer_ids": [], "dspark_markov_rank": 256,
    "dspark_n_routed_experts": 128, "dspark_num_experts_per_tok": 3
  }},
  "vision_config": {{
    "model_type": "deepseek_v41_vision", "num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 16,
    "intermediate_size": 2816, "patch_size": 14, "rope_theta": 10000, "downsample_ratio": 3, "max_image_tokens": 1024,
    "min_pixels": 295936, "max_wh_ratio": null
  }}
}})";

/// xorshift64: fast enough to fill gigabytes.
struct Random {
  uint64_t state;
  uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  }
};

/// Four bfloat16 values of +-2^-6 to +-2^-4 a word, whatever the random bits.
uint64_t bf16_word(uint64_t bits) {
  return (bits & 0x80ff80ff80ff80ffU) | 0x3c803c803c803c80U;
}

/// Eight E4M3 codes a word: +-0.0156 to +-0.47, never NaN.
uint64_t e4m3_word(uint64_t bits) {
  return (bits & 0xa7a7a7a7a7a7a7a7U) | 0x0808080808080808U;
}

void fill(const ExpectedTensor& tensor, Random& random, std::span<std::byte> out) {
  const bool is_norm = tensor.name.find("norm") != std::string::npos;
  for (size_t at = 0; at < out.size(); at += sizeof(uint64_t)) {
    uint64_t word = random.next();
    switch (tensor.dtype) {
      case Dtype::kBf16: word = is_norm ? 0x3f803f803f803f80U : bf16_word(word); break;
      case Dtype::kF8E4m3: word = e4m3_word(word); break;
      case Dtype::kF8E8m0: word = 0x7b7b7b7b7b7b7b7bU; break;  // 2^-4
      case Dtype::kF32: {
        const auto small = std::bit_cast<uint32_t>(1e-3F) ^ static_cast<uint32_t>(word & 0x807fffffU);
        word = static_cast<uint64_t>(small) << 32 | small;
        break;
      }
      default: break;  // FP4 pairs: every byte is two codes
    }
    std::memcpy(out.data() + at, &word, std::min(sizeof word, out.size() - at));
  }
}

}  // namespace

void write_cut_model(const CutModel& model, const std::filesystem::path& folder) {
  const std::string config = fmt::format(kConfig, fmt::arg("vocab", model.vocab_size),
                                         fmt::arg("experts", model.experts), fmt::arg("image", model.vocab_size - 16));
  write_file_atomically(folder / "config.json", config);
  const std::vector<ExpectedTensor> expected = expected_tensors(parse_config(config, "the cut model"));
  std::vector<TensorToWrite> tensors;
  tensors.reserve(expected.size());
  for (const ExpectedTensor& tensor : expected)
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
  AtomicFile file(folder / "model.safetensors");
  file.write(make_safetensors_header(tensors));
  std::vector<std::byte> buffer(size_t{8} << 20);
  Random random{0x9e3779b97f4a7c15U};
  for (const ExpectedTensor& tensor : expected) {
    uint64_t left = tensor_bytes(tensor.dtype, tensor.shape).value();
    while (left > 0) {
      const std::span<std::byte> part = std::span(buffer).first(std::min<uint64_t>(left, buffer.size()));
      fill(tensor, random, part);
      file.write(part);
      left -= part.size();
    }
  }
  file.commit();
}

}  // namespace tidepool::bench
