#include "formats/config_writer.h"

#include <nlohmann/json.hpp>

namespace tidepool {
namespace {

using Json = nlohmann::ordered_json;

Json quantization() {
  return {{"quant_method", "fp8"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {32, 32}},
          {"scale_fmt", "ue8m0"},
          {"expert_dtype", "fp4"}};
}

void write_sizes(const ModelConfig& config, Json& text) {
  text["model_type"] = "deepseek_v41_text";
  text["vocab_size"] = config.vocab_size;
  text["hidden_size"] = config.hidden_size;
  text["moe_intermediate_size"] = config.moe_intermediate_size;
  text["num_hidden_layers"] = config.num_hidden_layers;
  text["num_attention_heads"] = config.num_attention_heads;
  text["num_key_value_heads"] = 1;
  text["head_dim"] = config.head_dim;
  text["qk_rope_head_dim"] = config.qk_rope_head_dim;
  text["q_lora_rank"] = config.q_lora_rank;
  text["o_lora_rank"] = config.o_lora_rank;
  text["o_groups"] = config.o_groups;
  text["hidden_act"] = "silu";
  text["swiglu_limit"] = config.swiglu_limit;
  text["rms_norm_eps"] = config.rms_norm_eps;
  text["attention_bias"] = false;
  text["tie_word_embeddings"] = false;
  text["max_position_embeddings"] = config.max_position_embeddings;
  text["rope_theta"] = config.rope_theta;
  text["rope_scaling"] = {{"rope_type", "yarn"},
                          {"factor", config.yarn.factor},
                          {"beta_fast", config.yarn.beta_fast},
                          {"beta_slow", config.yarn.beta_slow},
                          {"original_max_position_embeddings", config.yarn.original_max_position_embeddings}};
}

void write_layers(const ModelConfig& config, Json& text) {
  text["n_routed_experts"] = config.n_routed_experts;
  text["n_shared_experts"] = config.n_shared_experts;
  text["num_experts_per_tok"] = config.num_experts_per_tok;
  text["scoring_func"] = "sqrtsoftplus";
  text["topk_method"] = "noaux_tc";
  text["norm_topk_prob"] = config.norm_topk_prob;
  text["routed_scaling_factor"] = config.routed_scaling_factor;
  text["sliding_window"] = config.sliding_window;
  text["compress_ratios"] = config.compress_ratios;
  text["compress_rope_theta"] = config.compress_rope_theta;
  text["kv_source_layer_ids"] = config.kv_source_layer_ids;
  text["index_source_layer_ids"] = config.index_source_layer_ids;
  text["index_n_heads"] = config.index_n_heads;
  text["index_head_dim"] = config.index_head_dim;
  text["index_topk"] = config.index_topk;
  text["candidate_source_layer_id"] = config.candidate_source_layer_id;
  text["candidate_topk_blocks"] = config.candidate_topk_blocks;
  text["candidate_block_size"] = config.candidate_block_size;
  text["hc_mult"] = config.hc_mult;
  text["hc_sinkhorn_iters"] = config.hc_sinkhorn_iters;
  text["hc_eps"] = config.hc_eps;
}

void write_engram(const EngramConfig& engram, Json& text) {
  text["engram_layer_ids"] = engram.layer_ids;
  text["engram_num_embeddings"] = engram.num_embeddings;
  text["engram_max_ngram_size"] = engram.max_ngram_size;
  text["engram_vocab_size"] = engram.vocab_size;
  text["engram_n_heads"] = engram.n_heads;
  text["engram_head_dim"] = engram.head_dim;
  text["engram_pad_token_id"] = engram.pad_token_id;
  text["engram_compressed_vocab_size"] = engram.compressed_vocab_size;
}

void write_dspark(const DsparkConfig& dspark, Json& text) {
  text["num_nextn_predict_layers"] = dspark.num_layers;
  text["dspark_block_size"] = dspark.block_size;
  text["dspark_noise_token_id"] = dspark.noise_token_id;
  text["dspark_target_layer_ids"] = dspark.target_layer_ids;
  text["dspark_markov_rank"] = dspark.markov_rank;
  text["dspark_n_routed_experts"] = dspark.n_routed_experts;
  text["dspark_num_experts_per_tok"] = dspark.num_experts_per_tok;
}

Json vision(const VisionConfig& config) {
  Json result = {{"model_type", "deepseek_v41_vision"},
                 {"num_hidden_layers", config.num_hidden_layers},
                 {"hidden_size", config.hidden_size},
                 {"num_attention_heads", config.num_attention_heads},
                 {"intermediate_size", config.intermediate_size},
                 {"patch_size", config.patch_size},
                 {"rope_theta", config.rope_theta},
                 {"downsample_ratio", config.downsample_ratio},
                 {"max_image_tokens", config.max_image_tokens},
                 {"min_pixels", config.min_pixels},
                 {"max_wh_ratio", nullptr}};
  if (config.max_wh_ratio) result["max_wh_ratio"] = *config.max_wh_ratio;
  return result;
}

}  // namespace

std::string write_config(const ModelConfig& config) {
  Json text;
  write_sizes(config, text);
  write_layers(config, text);
  if (config.engram) write_engram(*config.engram, text);
  if (config.dspark) write_dspark(*config.dspark, text);
  Json top = {{"architectures", {"DeepseekV41ForCausalLM"}},
              {"model_type", "deepseek_v41"},
              {"dtype", "bfloat16"},
              {"bos_token_id", config.bos_token_id},
              {"eos_token_id", config.eos_token_id},
              {"pad_token_id", config.pad_token_id}};
  if (config.image_token_id) top["image_token_id"] = *config.image_token_id;
  top["quantization_config"] = quantization();
  top["text_config"] = std::move(text);
  if (config.vision) top["vision_config"] = vision(*config.vision);
  return top.dump(2) + "\n";
}

}  // namespace tidepool
