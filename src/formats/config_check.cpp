#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <string_view>

#include "base/error.h"
#include "formats/config.h"

namespace tidepool {
namespace {

class Checker {
 public:
  Checker(const ModelConfig& config, const std::string& origin) : config_(config), origin_(origin) {}

  void check_all() const {
    check_widths();
    check_ratios();
    check_sources();
    check_global_attention();
    check_candidates();
    check_yarn();
    if (config_.engram) check_engram(*config_.engram);
    if (config_.dspark) check_dspark(*config_.dspark);
    if (config_.vision) check_vision(*config_.vision);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}", origin_, what));
  }

  void check_multiple(std::string_view key, int64_t value, int64_t unit, std::string_view why) const {
    if (value > 0 && value % unit == 0) return;
    refuse(fmt::format("{} is {}; supported: positive multiples of {} ({})", key, value, unit, why));
  }

  void check_ascending(std::string_view key, const std::vector<int64_t>& ids) const {
    if (std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) != ids.end()) {
      refuse(fmt::format("{} is [{}]; supported: ascending layer ids, each once", key, fmt::join(ids, ", ")));
    }
    if (!ids.empty() && (ids.front() < 0 || ids.back() >= config_.num_hidden_layers)) {
      refuse(fmt::format("{} is [{}]; supported: layers 0 to {}", key, fmt::join(ids, ", "),
                         config_.num_hidden_layers - 1));
    }
  }

  void check_widths() const {
    static constexpr std::string_view kBlocks = "weights and cache rows have a scale per 32 columns";
    check_multiple("/text_config/hidden_size", config_.hidden_size, 32, kBlocks);
    check_multiple("/text_config/moe_intermediate_size", config_.moe_intermediate_size, 32, kBlocks);
    check_multiple("/text_config/head_dim", config_.head_dim, 32, kBlocks);
    check_multiple("/text_config/q_lora_rank", config_.q_lora_rank, 32, kBlocks);
    check_multiple("/text_config/o_lora_rank", config_.o_lora_rank, 32, "each output group begins on a 32-row tile");
    check_multiple("/text_config/qk_rope_head_dim", config_.qk_rope_head_dim, 2, "rotation turns pairs");
    check_multiple("/text_config/num_attention_heads", config_.num_attention_heads, config_.o_groups,
                   "o_groups output groups of whole heads");
    if (config_.qk_rope_head_dim > config_.head_dim) {
      refuse(fmt::format("/text_config/qk_rope_head_dim is {}, wider than head_dim {}", config_.qk_rope_head_dim,
                         config_.head_dim));
    }
  }

  void check_ratios() const {
    const int64_t stages = config_.dspark ? config_.dspark->num_layers : 0;
    const auto expected = static_cast<size_t>(config_.num_hidden_layers + stages);
    if (config_.compress_ratios.size() != expected) {
      refuse(fmt::format("/text_config/compress_ratios has {} entries; supported: one per layer and draft stage, {}",
                         config_.compress_ratios.size(), expected));
    }
    for (size_t i = 0; i < expected; ++i) {
      if (config_.compress_ratios[i] < 0 || config_.compress_ratios[i] > 2) {
        refuse(fmt::format("/text_config/compress_ratios/{} is {}; supported: 0, 1, 2", i, config_.compress_ratios[i]));
      }
    }
    for (size_t i = static_cast<size_t>(config_.num_hidden_layers); i < expected; ++i) {
      if (config_.compress_ratios[i] != 0) {
        refuse(fmt::format("/text_config/compress_ratios/{} is {}; supported for draft stages: 0", i,
                           config_.compress_ratios[i]));
      }
    }
  }

  /// The last id at or before `layer`, or -1.
  [[nodiscard]] static int64_t latest(const std::vector<int64_t>& ids, int64_t layer) {
    const auto after = std::upper_bound(ids.begin(), ids.end(), layer);
    return after == ids.begin() ? -1 : *(after - 1);
  }

  [[nodiscard]] int64_t ratio(int64_t layer) const { return config_.compress_ratios[static_cast<size_t>(layer)]; }

  void check_sources() const {
    check_ascending("/text_config/kv_source_layer_ids", config_.kv_source_layer_ids);
    check_ascending("/text_config/index_source_layer_ids", config_.index_source_layer_ids);
    for (const int64_t id : config_.kv_source_layer_ids) {
      if (ratio(id) == 0) refuse(fmt::format("/text_config/kv_source_layer_ids names layer {}, whose ratio is 0", id));
      // Its entries are new, so positions selected among an older source's would mean nothing.
      if (latest(config_.index_source_layer_ids, id) != id) {
        refuse(fmt::format("/text_config/kv_source_layer_ids names layer {}, which index_source_layer_ids lacks", id));
      }
    }
    for (const int64_t id : config_.index_source_layer_ids) {
      if (ratio(id) == 0) {
        refuse(fmt::format("/text_config/index_source_layer_ids names layer {}, whose ratio is 0", id));
      }
    }
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer)
      check_layer_source(layer);
  }

  void check_layer_source(int64_t layer) const {
    if (ratio(layer) == 0) return;
    const int64_t source = latest(config_.kv_source_layer_ids, layer);
    if (source < 0) {
      refuse(fmt::format("/text_config/compress_ratios/{} is {}, but kv_source_layer_ids has no layer at or before it",
                         layer, ratio(layer)));
    }
    if (ratio(source) != ratio(layer)) {
      refuse(fmt::format("/text_config/compress_ratios/{} is {}, but its KV source, layer {}, has ratio {}", layer,
                         ratio(layer), source, ratio(source)));
    }
  }

  void check_global_attention() const {
    if (config_.kv_source_layer_ids.empty()) return;
    check_multiple("/text_config/index_head_dim", config_.index_head_dim, 32, "index keys have a scale per 32 values");
    if (config_.index_head_dim < config_.qk_rope_head_dim) {
      refuse(fmt::format("/text_config/index_head_dim is {}, narrower than qk_rope_head_dim {}", config_.index_head_dim,
                         config_.qk_rope_head_dim));
    }
    check_multiple("/text_config/index_n_heads", config_.index_n_heads, 1, "index queries");
    check_multiple("/text_config/index_topk", config_.index_topk, 1, "positions to attend");
  }

  void check_candidates() const {
    const int64_t source = config_.candidate_source_layer_id;
    if (source < 0) return;
    if (latest(config_.index_source_layer_ids, source) != source) {
      refuse(fmt::format("/text_config/candidate_source_layer_id is {}; supported: an index source, one of [{}]",
                         source, fmt::join(config_.index_source_layer_ids, ", ")));
    }
    check_multiple("/text_config/candidate_topk_blocks", config_.candidate_topk_blocks, 1, "blocks to keep");
    check_multiple("/text_config/candidate_block_size", config_.candidate_block_size, 1, "positions of a block");
    const int64_t kv_source = latest(config_.kv_source_layer_ids, source);
    for (const int64_t id : config_.index_source_layer_ids) {
      if (id > source && latest(config_.kv_source_layer_ids, id) != kv_source) {
        refuse(
            fmt::format("/text_config/index_source_layer_ids names layer {}, which would search layer {}'s "
                        "candidates in another KV source's entries",
                        id, source));
      }
    }
  }

  void check_yarn() const {
    if (config_.yarn.beta_fast >= config_.yarn.beta_slow) return;
    refuse(fmt::format("/text_config/rope_scaling: beta_fast {} is below beta_slow {}", config_.yarn.beta_fast,
                       config_.yarn.beta_slow));
  }

  void check_engram(const EngramConfig& engram) const {
    check_ascending("/text_config/engram_layer_ids", engram.layer_ids);
    if (engram.num_embeddings.size() != engram.layer_ids.size()) {
      refuse(fmt::format("/text_config/engram_num_embeddings has {} entries; supported: one per Engram layer, {}",
                         engram.num_embeddings.size(), engram.layer_ids.size()));
    }
    check_multiple("/text_config/engram_head_dim", engram.head_dim, 32, "table rows have a scale per 32 columns");
  }

  void check_dspark(const DsparkConfig& dspark) const {
    check_ascending("/text_config/dspark_target_layer_ids", dspark.target_layer_ids);
    if (dspark.target_layer_ids.empty()) refuse("/text_config/dspark_target_layer_ids is []; supported: some layers");
  }

  void check_vision(const VisionConfig& vision) const {
    if (!config_.image_token_id) refuse("/image_token_id is missing, but there is a vision_config");
    check_multiple("/vision_config/hidden_size", vision.hidden_size, 4 * vision.num_attention_heads,
                   "heads whose halves hold pairs for rows and for columns");
  }

  const ModelConfig& config_;
  const std::string& origin_;
};

}  // namespace

void check_config(const ModelConfig& config, const std::string& origin) {
  Checker(config, origin).check_all();
}

}  // namespace tidepool
