#include "formats/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace tidepool {
namespace {

using Json = nlohmann::ordered_json;

/// The released file has 3,311 bytes; nothing sensible comes near this.
constexpr uint64_t kConfigBytesMax = 1 << 20;
constexpr int kConfigDepthMax = 16;

/// Bounds that keep every product of two sizes below 2^62 and say "damaged" early. The released values are at most
/// 129,280 (a width or count), 1,048,576 (positions) and 384,016,682 (table rows).
constexpr int64_t kSizeMax = int64_t{1} << 24;
constexpr int64_t kLayersMax = 4096;
constexpr int64_t kPositionsMax = int64_t{1} << 32;
constexpr int64_t kRowsMax = int64_t{1} << 40;

std::string shown(const Json& value) {
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace), 80);
}

/// What all sections of one file share.
struct Document {
  std::string origin;
  std::set<std::string, std::less<>> known;  ///< JSON pointers of the keys that mean something
};

/// One JSON object of the file: reads keys, remembers which were read, and words the errors.
class Section {
 public:
  Section(const Json& object, std::string pointer, Document& document)
      : object_(object), pointer_(std::move(pointer)), document_(document) {
    if (object.is_object()) return;
    throw Error(ErrorCode::kUnsupported, fmt::format("{}: {} is {}; supported: an object", document_.origin,
                                                     pointer_.empty() ? "the file" : pointer_, shown(object)));
  }

  /// Present and not null.
  [[nodiscard]] bool has(const char* key) {
    ignore(key);
    const auto found = object_.find(key);
    return found != object_.end() && !found->is_null();
  }

  [[nodiscard]] const Json& value(const char* key) {
    ignore(key);
    const auto found = object_.find(key);
    if (found == object_.end()) {
      throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}/{} is missing", document_.origin, pointer_, key));
    }
    return *found;
  }

  /// A known key whose value the engine does not need.
  void ignore(const char* key) { document_.known.insert(fmt::format("{}/{}", pointer_, key)); }

  [[noreturn]] void refuse(std::string_view key, const Json& value, const std::string& supported) const {
    throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}/{} is {}; supported: {}", document_.origin, pointer_, key,
                                                     shown(value), supported));
  }

  [[nodiscard]] int64_t integer(const char* key, int64_t min, int64_t max) {
    return to_integer(key, value(key), min, max);
  }

  [[nodiscard]] std::vector<int64_t> integers(const char* key, int64_t min, int64_t max) {
    const Json& array = value(key);
    if (!array.is_array()) refuse(key, array, "a list of integers");
    if (array.size() > static_cast<size_t>(kLayersMax))
      refuse(key, array, fmt::format("at most {} entries", kLayersMax));
    std::vector<int64_t> result;
    result.reserve(array.size());
    for (const Json& item : array) {
      result.push_back(to_integer(fmt::format("{}/{}", key, result.size()), item, min, max));
    }
    return result;
  }

  [[nodiscard]] double number(const char* key, double min, double max) {
    const Json& item = value(key);
    const double result = item.is_number() ? item.get<double>() : std::numeric_limits<double>::quiet_NaN();
    // The other way round, NaN would pass.
    if (!(result >= min && result <= max)) refuse(key, item, fmt::format("numbers from {} to {}", min, max));
    return result;
  }

  [[nodiscard]] bool boolean(const char* key, bool when_missing) {
    if (!has(key)) return when_missing;
    const Json& item = value(key);
    if (!item.is_boolean()) refuse(key, item, "true, false");
    return item.get<bool>();
  }

  /// A key that may be missing, but must not say anything else.
  void only(const char* key, const Json& supported) {
    if (object_.contains(key) && value(key) != supported) refuse(key, value(key), supported.dump());
    ignore(key);
  }

  /// A key that must be there and say exactly this.
  void exactly(const char* key, const Json& supported) {
    if (value(key) != supported) refuse(key, value(key), supported.dump());
  }

  [[nodiscard]] Section section(const char* key) {
    return {value(key), fmt::format("{}/{}", pointer_, key), document_};
  }

  [[nodiscard]] const Json& object() const { return object_; }
  [[nodiscard]] const std::string& origin() const { return document_.origin; }

 private:
  [[nodiscard]] int64_t to_integer(std::string_view key, const Json& item, int64_t min, int64_t max) const {
    // The library's signed read of a number above 2^63 would wrap.
    const bool is_good =
        item.is_number_integer() && (!item.is_number_unsigned() || item.get<uint64_t>() <= static_cast<uint64_t>(max));
    const int64_t result = is_good ? item.get<int64_t>() : min;
    if (!is_good || result < min || result > max) refuse(key, item, fmt::format("integers from {} to {}", min, max));
    return result;
  }

  const Json& object_;
  std::string pointer_;
  Document& document_;
};

void append_unknown(const Json& object, const std::string& pointer, const Document& document,
                    std::vector<std::string>& unknown) {
  for (const auto& [key, value] : object.items()) {
    const std::string child = fmt::format("{}/{}", pointer, key);
    if (!document.known.contains(child)) {
      unknown.push_back(printable(child));
    } else if (value.is_object()) {
      append_unknown(value, child, document, unknown);
    }
  }
}

/// Refuses files of other models by name. The flat file that comes with the released sources has no model_type.
void check_model(Section& top) {
  static constexpr std::string_view kSupported = "supported: \"deepseek_v41\" (DeepSeek-V4.1-Flash)";
  const Json& object = top.object();
  if (!object.contains("model_type")) {
    const bool is_flat = object.contains("n_layers") && object.contains("dim");
    throw Error(ErrorCode::kUnsupported,
                is_flat ? fmt::format("{}: this is the flat inference/config.json; point at the config.json in the "
                                      "model's top folder, which has text_config",
                                      top.origin())
                        : fmt::format("{}: /model_type is missing; {}", top.origin(), kSupported));
  }
  const Json& type = top.value("model_type");
  if (type == "deepseek_v41") return;
  std::string architecture;
  if (object.contains("architectures"))
    architecture = fmt::format(" (architectures {})", shown(object["architectures"]));
  throw Error(ErrorCode::kUnsupported, fmt::format("{}: a model of type {}{}, which this engine cannot run; {}",
                                                   top.origin(), shown(type), architecture, kSupported));
}

void read_top(Section& top, ModelConfig& config) {
  const int64_t token_max = config.vocab_size - 1;
  top.only("architectures", Json::array({"DeepseekV41ForCausalLM"}));
  top.only("dtype", "bfloat16");
  top.only("torch_dtype", "bfloat16");
  top.ignore("transformers_version");
  config.bos_token_id = top.integer("bos_token_id", 0, token_max);
  config.eos_token_id = top.integer("eos_token_id", 0, token_max);
  config.pad_token_id = top.integer("pad_token_id", 0, token_max);
  if (top.has("image_token_id")) config.image_token_id = top.integer("image_token_id", 0, token_max);
}

void read_quantization(Section section) {
  section.exactly("quant_method", "fp8");
  section.only("activation_scheme", "dynamic");
  section.exactly("weight_block_size", Json::array({32, 32}));
  section.exactly("scale_fmt", "ue8m0");
  section.exactly("expert_dtype", "fp4");
}

void read_fixed(Section& text) {
  text.only("model_type", "deepseek_v41_text");
  text.only("hidden_act", "silu");
  text.only("attention_bias", false);
  text.only("tie_word_embeddings", false);
  text.only("scoring_func", "sqrtsoftplus");
  text.only("topk_method", "noaux_tc");
  text.only("num_key_value_heads", 1);
  for (const char* key : {"attention_dropout", "initializer_range", "use_cache"})
    text.ignore(key);
}

void read_sizes(Section& text, ModelConfig& config) {
  config.vocab_size = text.integer("vocab_size", 1, kSizeMax);
  config.hidden_size = text.integer("hidden_size", 32, kSizeMax);
  config.moe_intermediate_size = text.integer("moe_intermediate_size", 32, kSizeMax);
  config.num_hidden_layers = text.integer("num_hidden_layers", 1, kLayersMax);
  config.num_attention_heads = text.integer("num_attention_heads", 1, 65536);
  config.head_dim = text.integer("head_dim", 32, 65536);
  config.qk_rope_head_dim = text.integer("qk_rope_head_dim", 2, 65536);
  config.q_lora_rank = text.integer("q_lora_rank", 32, kSizeMax);
  config.o_lora_rank = text.integer("o_lora_rank", 32, 65536);
  config.o_groups = text.integer("o_groups", 1, 65536);
  config.swiglu_limit = text.has("swiglu_limit") ? text.number("swiglu_limit", 0, 1e30) : 0;
  config.rms_norm_eps = text.number("rms_norm_eps", 0, 1);
  config.max_position_embeddings = text.integer("max_position_embeddings", 1, kPositionsMax);
  config.rope_theta = text.number("rope_theta", 1, 1e30);
  config.compress_rope_theta = text.number("compress_rope_theta", 1, 1e30);
  config.sliding_window = text.integer("sliding_window", 1, kSizeMax);
  config.hc_mult = text.integer("hc_mult", 1, 16);
  config.hc_sinkhorn_iters = text.integer("hc_sinkhorn_iters", 1, 10000);
  config.hc_eps = text.number("hc_eps", 0, 1);
}

void read_yarn(Section section, ModelConfig& config) {
  section.exactly("rope_type", "yarn");
  config.yarn.factor = section.number("factor", 1, 1e6);
  config.yarn.beta_fast = section.number("beta_fast", 1e-6, 1e6);
  config.yarn.beta_slow = section.number("beta_slow", 1e-6, 1e6);
  config.yarn.original_max_position_embeddings = section.integer("original_max_position_embeddings", 1, kPositionsMax);
  section.only("mscale", 1.0);
  section.only("mscale_all_dim", 1.0);
}

void read_moe(Section& text, ModelConfig& config) {
  config.n_routed_experts = text.integer("n_routed_experts", 1, 65536);
  config.n_shared_experts = text.integer("n_shared_experts", 1, 1);
  config.num_experts_per_tok = text.integer("num_experts_per_tok", 1, config.n_routed_experts);
  config.norm_topk_prob = text.boolean("norm_topk_prob", true);
  config.routed_scaling_factor = text.number("routed_scaling_factor", 0, 1e6);
}

void read_layers(Section& text, ModelConfig& config) {
  const int64_t last = config.num_hidden_layers - 1;
  config.compress_ratios = text.integers("compress_ratios", 0, 2);
  config.kv_source_layer_ids = text.integers("kv_source_layer_ids", 0, last);
  config.index_source_layer_ids = text.integers("index_source_layer_ids", 0, last);
  config.index_n_heads = text.integer("index_n_heads", 0, 65536);
  config.index_head_dim = text.integer("index_head_dim", 0, 65536);
  config.index_topk = text.integer("index_topk", 0, kSizeMax);
  if (text.has("candidate_source_layer_id")) {
    // Any negative id means "off".
    const int64_t id = text.integer("candidate_source_layer_id", -kLayersMax, last);
    config.candidate_source_layer_id = std::max<int64_t>(id, -1);
  }
  if (text.has("candidate_topk_blocks"))
    config.candidate_topk_blocks = text.integer("candidate_topk_blocks", 0, kSizeMax);
  if (text.has("candidate_block_size")) config.candidate_block_size = text.integer("candidate_block_size", 0, kSizeMax);
}

std::optional<EngramConfig> read_engram(Section& text, const ModelConfig& config) {
  static constexpr const char* kKeys[] = {
      "engram_num_embeddings", "engram_max_ngram_size", "engram_vocab_size",           "engram_n_heads",
      "engram_head_dim",       "engram_pad_token_id",   "engram_compressed_vocab_size"};
  for (const char* key : kKeys)
    text.ignore(key);
  if (!text.has("engram_layer_ids")) return std::nullopt;
  EngramConfig engram;
  engram.layer_ids = text.integers("engram_layer_ids", 0, config.num_hidden_layers - 1);
  if (engram.layer_ids.empty()) return std::nullopt;
  engram.num_embeddings = text.integers("engram_num_embeddings", 1, kRowsMax);
  engram.max_ngram_size = text.integer("engram_max_ngram_size", 2, 16);
  engram.vocab_size = text.integer("engram_vocab_size", 2, kRowsMax);
  engram.n_heads = text.integer("engram_n_heads", 1, 1024);
  engram.head_dim = text.integer("engram_head_dim", 32, 65536);
  engram.pad_token_id = text.integer("engram_pad_token_id", 0, config.vocab_size - 1);
  engram.compressed_vocab_size = text.integer("engram_compressed_vocab_size", 1, config.vocab_size);
  return engram;
}

std::optional<DsparkConfig> read_dspark(Section& text, const ModelConfig& config) {
  static constexpr const char* kKeys[] = {"dspark_block_size",       "dspark_noise_token_id",
                                          "dspark_target_layer_ids", "dspark_markov_rank",
                                          "dspark_n_routed_experts", "dspark_num_experts_per_tok"};
  for (const char* key : kKeys)
    text.ignore(key);
  if (!text.has("num_nextn_predict_layers")) return std::nullopt;
  DsparkConfig dspark;
  dspark.num_layers = text.integer("num_nextn_predict_layers", 0, 64);
  if (dspark.num_layers == 0) return std::nullopt;
  dspark.block_size = text.integer("dspark_block_size", 1, 1024);
  dspark.noise_token_id = text.integer("dspark_noise_token_id", 0, config.vocab_size - 1);
  dspark.target_layer_ids = text.integers("dspark_target_layer_ids", 0, config.num_hidden_layers - 1);
  dspark.markov_rank = text.integer("dspark_markov_rank", 1, 65536);
  dspark.n_routed_experts = text.integer("dspark_n_routed_experts", 1, 65536);
  dspark.num_experts_per_tok = text.integer("dspark_num_experts_per_tok", 1, dspark.n_routed_experts);
  return dspark;
}

VisionConfig read_vision(Section section) {
  section.only("model_type", "deepseek_v41_vision");
  VisionConfig vision;
  vision.num_hidden_layers = section.integer("num_hidden_layers", 1, kLayersMax);
  vision.hidden_size = section.integer("hidden_size", 1, 65536);
  vision.num_attention_heads = section.integer("num_attention_heads", 1, 1024);
  vision.intermediate_size = section.integer("intermediate_size", 1, kSizeMax);
  vision.patch_size = section.integer("patch_size", 1, 256);
  vision.rope_theta = section.number("rope_theta", 1, 1e30);
  vision.downsample_ratio = section.integer("downsample_ratio", 1, 16);
  vision.max_image_tokens = section.integer("max_image_tokens", 4, kSizeMax);
  vision.min_pixels = section.integer("min_pixels", 0, kPositionsMax);
  if (section.has("max_wh_ratio")) vision.max_wh_ratio = section.number("max_wh_ratio", 1e-6, 1e6);
  return vision;
}

ModelConfig read_config(const Json& json, Document& document) {
  Section top(json, "", document);
  check_model(top);
  ModelConfig config;
  Section text = top.section("text_config");
  read_fixed(text);
  read_sizes(text, config);
  read_top(top, config);
  read_quantization(top.section("quantization_config"));
  read_yarn(text.section("rope_scaling"), config);
  read_moe(text, config);
  read_layers(text, config);
  config.engram = read_engram(text, config);
  config.dspark = read_dspark(text, config);
  if (top.has("vision_config")) config.vision = read_vision(top.section("vision_config"));
  append_unknown(json, "", document, config.unknown_keys);
  return config;
}

/// Parses, with limits on depth and on keys said twice (of which the library would silently keep the last).
Json parse_json(const std::string& text, const std::string& origin) {
  std::vector<std::set<std::string>> open_objects;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kConfigDepthMax) throw Error(ErrorCode::kCorrupt, fmt::format("{}: nested too deeply", origin));
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key && !open_objects.back().insert(parsed.get<std::string>()).second) {
      throw Error(ErrorCode::kCorrupt, fmt::format("{}: the key {} is there twice", origin, shown(parsed)));
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::parse_error& error) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: not JSON, at byte {}", origin, error.byte));
  } catch (const Json::out_of_range&) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: a number too large to read", origin));
  }
}

}  // namespace

ModelConfig parse_config(const std::string& json_text, const std::string& origin) {
  const Json json = parse_json(json_text, origin);
  Document document{.origin = origin, .known = {}};
  ModelConfig config = read_config(json, document);
  check_config(config, origin);
  return config;
}

ModelConfig load_config(const std::filesystem::path& file) {
  return parse_config(read_file(file, kConfigBytesMax), file.string());
}

}  // namespace tidepool
