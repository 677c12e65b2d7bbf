#include "apps/inspect_json.h"

#include <string_view>
#include <utility>

#include "apps/json_values.h"

namespace tidepool {
namespace {

Json integer(int64_t value) {
  return Json::make_integer(value);
}

/// A layer id, null for none.
Json layer_id(int64_t id) {
  return id < 0 ? Json() : integer(id);
}

template <typename List, typename ToJson>
Json array(const List& list, ToJson to_json) {
  Json::Array values;
  for (const auto& element : list)
    values.push_back(to_json(element));
  return Json::make_array(std::move(values));
}

Json config_json(const ModelConfig& config) {
  Json object = Json::make_object();
  object.set("num_hidden_layers", integer(config.num_hidden_layers));
  object.set("hidden_size", integer(config.hidden_size));
  object.set("hc_mult", integer(config.hc_mult));
  object.set("vocab_size", integer(config.vocab_size));
  object.set("num_attention_heads", integer(config.num_attention_heads));
  object.set("head_dim", integer(config.head_dim));
  object.set("sliding_window", integer(config.sliding_window));
  object.set("index_topk", integer(config.index_topk));
  object.set("n_routed_experts", integer(config.n_routed_experts));
  object.set("n_shared_experts", integer(config.n_shared_experts));
  object.set("num_experts_per_tok", integer(config.num_experts_per_tok));
  object.set("moe_intermediate_size", integer(config.moe_intermediate_size));
  object.set("max_position_embeddings", integer(config.max_position_embeddings));
  object.set("has_engram", Json::make_bool(config.engram.has_value()));
  object.set("has_dspark", Json::make_bool(config.dspark.has_value()));
  object.set("has_vision", Json::make_bool(config.vision.has_value()));
  object.set("unknown_keys", array(config.unknown_keys, [](const std::string& key) { return json_text(key); }));
  return object;
}

Json layer_json(const LayerPlan& layer, const ModelConfig& config) {
  Json object = Json::make_object();
  object.set("layer", integer(static_cast<int64_t>(layer.index)));
  object.set("mode", json_text(layer_mode_name(layer.mode)));
  object.set("ratio", integer(layer.ratio));
  object.set("kv_source", layer_id(layer.kv_source_layer));
  object.set("index_source", layer_id(layer.index_source_layer));
  object.set("candidates", layer.makes_candidates  ? json_text("makes")
                           : layer.uses_candidates ? json_text("uses")
                                                   : Json());
  object.set("engram_rows", layer.engram_slot < 0
                                ? Json()
                                : integer(config.engram->num_embeddings[static_cast<size_t>(layer.engram_slot)]));
  object.set("half", json_text(layer.is_decoder ? "decoder" : "encoder"));
  return object;
}

Json part_json(const PartSize& part) {
  Json object = Json::make_object();
  object.set("name", json_text(part.name));
  object.set("parameters", json_count(part.parameters));
  object.set("short", json_text(format_parameters(part.parameters)));
  object.set("bytes", json_count(part.bytes));
  return object;
}

Json dtype_json(const DtypeSize& dtype) {
  Json object = Json::make_object();
  object.set("dtype", json_text(dtype_name(dtype.dtype)));
  object.set("tensors", json_count(dtype.tensors));
  object.set("bytes", json_count(dtype.bytes));
  return object;
}

Json memory_json(const MemoryPlan& plan) {
  Json object = Json::make_object();
  object.set("weight_bytes", json_count(plan.weight_bytes));
  object.set("engram_table_bytes", json_count(plan.table_bytes));
  object.set("kv_bytes_per_token", json_count(plan.token_bytes));
  object.set("sequence_bytes", json_count(plan.sequence_bytes));
  object.set("contexts", array(plan.contexts, [](const ContextSize& context) {
               Json entry = Json::make_object();
               entry.set("tokens", integer(context.tokens));
               entry.set("kv_bytes", json_count(context.kv_bytes));
               return entry;
             }));
  object.set("memory_total", json_count(plan.machine.memory_total));
  object.set("memory_available", json_count(plan.machine.memory_available));
  object.set("disk_total", json_count(plan.machine.disk_total));
  object.set("disk_free", json_count(plan.machine.disk_free));
  object.set("verdict", json_text(plan.verdict));
  return object;
}

}  // namespace

Json inspect_json(const CheckpointReport& report, const InspectedEngine& engine) {
  Json object = Json::make_object();
  object.set("config", config_json(report.config));
  object.set("layers",
             array(report.layers.layers, [&](const LayerPlan& layer) { return layer_json(layer, report.config); }));
  object.set("parts", array(report.parts, part_json));
  object.set("dtypes", array(report.dtypes, dtype_json));
  object.set("tensors", json_count(report.tensors));
  object.set("memory", memory_json(report.plan));
  Json kernels = Json::make_object();
  kernels.set("chosen", json_text(engine.kernels));
  kernels.set("available", array(engine.available_kernels, [](const std::string& name) { return json_text(name); }));
  kernels.set("threads", json_count(engine.threads));
  kernels.set("amx", json_text(engine.amx));
  object.set("kernels", std::move(kernels));
  return object;
}

}  // namespace tidepool
