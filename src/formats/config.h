#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tidepool {

/// YaRN scaling of the rotary frequencies of the layers with global attention.
struct YarnConfig {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_max_position_embeddings = 0;
};

/// Engram: hashed n-gram tables before some layers.
struct EngramConfig {
  std::vector<int64_t> layer_ids;
  std::vector<int64_t> num_embeddings;  ///< rows of each table, in the order of layer_ids
  int64_t max_ngram_size = 0;
  int64_t vocab_size = 0;  ///< where the search for the hash primes starts
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t pad_token_id = 0;  ///< raw token id; mapped before use
  int64_t compressed_vocab_size = 0;
};

/// DSpark, the draft head.
struct DsparkConfig {
  int64_t num_layers = 0;  ///< num_nextn_predict_layers
  int64_t block_size = 0;
  int64_t noise_token_id = 0;
  std::vector<int64_t> target_layer_ids;
  int64_t markov_rank = 0;
  int64_t n_routed_experts = 0;
  int64_t num_experts_per_tok = 0;
};

struct VisionConfig {
  int64_t num_hidden_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t intermediate_size = 0;
  int64_t patch_size = 0;
  double rope_theta = 0;
  int64_t downsample_ratio = 0;
  int64_t max_image_tokens = 0;
  int64_t min_pixels = 0;
  std::optional<double> max_wh_ratio;
};

/// config.json of a checkpoint, every key that means something to the engine, under the released names where one field
/// is one key. A ModelConfig that exists was checked: sizes positive and consistent, layer ids in range, nothing the
/// engine cannot honour. (docs/formats.md, "config.json")
struct ModelConfig {
  int64_t bos_token_id = 0;
  int64_t eos_token_id = 1;
  int64_t pad_token_id = 2;
  std::optional<int64_t> image_token_id;

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t moe_intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t q_lora_rank = 0;
  int64_t o_lora_rank = 0;
  int64_t o_groups = 0;
  double swiglu_limit = 0;  ///< 0 = no clamp
  double rms_norm_eps = 0;
  int64_t max_position_embeddings = 0;
  double rope_theta = 0;
  double compress_rope_theta = 0;
  YarnConfig yarn;

  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 0;
  int64_t num_experts_per_tok = 0;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1;

  int64_t sliding_window = 0;
  std::vector<int64_t> compress_ratios;  ///< one per backbone layer, then one (0) per draft stage
  std::vector<int64_t> kv_source_layer_ids;
  std::vector<int64_t> index_source_layer_ids;
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  int64_t candidate_source_layer_id = -1;  ///< -1 = no candidate pool
  int64_t candidate_topk_blocks = 0;
  int64_t candidate_block_size = 0;

  int64_t hc_mult = 0;
  int64_t hc_sinkhorn_iters = 0;
  double hc_eps = 0;

  std::optional<EngramConfig> engram;
  std::optional<DsparkConfig> dspark;
  std::optional<VisionConfig> vision;

  /// Keys in the file that mean nothing to this engine, as JSON pointers ("/text_config/foo"), in file order.
  std::vector<std::string> unknown_keys;
};

/// Reads and checks config.json. Throws Error: kNotFound / kIo, kCorrupt (not JSON, with byte position), kUnsupported
/// (another model: says which and what is supported; or a value this engine cannot honour), kInvalidArgument never.
[[nodiscard]] ModelConfig load_config(const std::filesystem::path& file);

/// The same from text; `origin` names it in errors.
[[nodiscard]] ModelConfig parse_config(const std::string& json_text, const std::string& origin);

/// What the values must satisfy together, for a config made in memory; the two above have called it.
/// Throws Error(kUnsupported) naming key, value and rule.
void check_config(const ModelConfig& config, const std::string& origin);

}  // namespace tidepool
