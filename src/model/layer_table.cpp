#include "model/layer_table.h"

#include <algorithm>

#include "base/check.h"

namespace tidepool {

namespace {

bool contains(const std::vector<int64_t>& ids, size_t layer) {
  return std::ranges::find(ids, static_cast<int64_t>(layer)) != ids.end();
}

LayerMode mode_of(const ModelConfig& config, size_t layer) {
  if (config.compress_ratios[layer] == 0) return LayerMode::kWindow;
  if (contains(config.kv_source_layer_ids, layer)) return LayerMode::kFull;
  return contains(config.index_source_layer_ids, layer) ? LayerMode::kReindex : LayerMode::kReuse;
}

int64_t engram_slot_of(const ModelConfig& config, size_t layer) {
  if (!config.engram) return -1;
  const auto& ids = config.engram->layer_ids;
  const auto found = std::ranges::find(ids, static_cast<int64_t>(layer));
  return found == ids.end() ? -1 : found - ids.begin();
}

}  // namespace

std::string_view layer_mode_name(LayerMode mode) {
  switch (mode) {
    case LayerMode::kWindow: return "window";
    case LayerMode::kFull: return "full";
    case LayerMode::kReindex: return "reindex";
    case LayerMode::kReuse: return "reuse";
    case LayerMode::kDraft: return "draft";
  }
  return "unknown";
}

LayerTable make_layer_table(const ModelConfig& config) {
  LayerTable table;
  const auto count = static_cast<size_t>(config.num_hidden_layers);
  table.decoder_begin =
      config.kv_source_layer_ids.empty() ? count : static_cast<size_t>(config.kv_source_layer_ids.back());
  int64_t index_source = -1;
  for (size_t layer = 0; layer < count; ++layer) {
    LayerPlan plan;
    plan.index = layer;
    plan.mode = mode_of(config, layer);
    plan.ratio = config.compress_ratios[layer];
    plan.engram_slot = engram_slot_of(config, layer);
    plan.is_decoder = layer >= table.decoder_begin;
    const auto id = static_cast<int64_t>(layer);
    if (plan.mode == LayerMode::kFull) table.kv_source_layers.push_back(layer);
    if (plan.mode == LayerMode::kFull || plan.mode == LayerMode::kReindex) index_source = id;
    if (plan.mode != LayerMode::kWindow) {
      TIDEPOOL_CHECK(!table.kv_source_layers.empty() && index_source >= 0, "the config was checked for KV sources");
      plan.kv_slot = table.kv_source_layers.size() - 1;
      plan.kv_source_layer = static_cast<int64_t>(table.kv_source_layers.back());
      plan.index_source_layer = index_source;
      plan.makes_candidates = id == config.candidate_source_layer_id;
      plan.uses_candidates = plan.mode == LayerMode::kReindex && config.candidate_source_layer_id >= 0 &&
                             config.candidate_source_layer_id >= plan.kv_source_layer &&
                             config.candidate_source_layer_id < id;
    }
    table.layers.push_back(plan);
  }
  return table;
}

KvLayout make_kv_layout(const ModelConfig& config, const LayerTable& table, const KvFormats& formats) {
  KvLayout layout;
  for (const size_t layer : table.kv_source_layers) {
    KvSource source;
    source.ratio = config.compress_ratios[layer];
    source.entry_format = formats.entry;
    source.key_format = formats.key;
    source.entry_width = static_cast<size_t>(config.head_dim);
    source.key_width = static_cast<size_t>(config.index_head_dim);
    layout.sources.push_back(source);
  }
  layout.window_layers = table.layers.size();
  layout.first_decoder_layer = table.decoder_begin;
  layout.window = config.sliding_window;
  layout.window_format = formats.window;
  layout.window_width = static_cast<size_t>(config.head_dim);
  // Rejected drafts are written beyond the end; going back from there reaches as far as without. With drafts or not, a
  // checkpoint's sequences are laid out alike, so that one can resume what the other left.
  if (config.dspark) layout.rollback_max += config.dspark->block_size;
  finish_kv_layout(layout);
  return layout;
}

KvLayout make_kv_layout_with_drafts(const ModelConfig& config, const LayerTable& table, const KvFormats& formats) {
  KvLayout layout = make_kv_layout(config, table, formats);
  layout.draft_stages = static_cast<size_t>(config.dspark->num_layers);
  // Rejected drafts are written beyond the end; going back from there must reach as far as without drafts.
  layout.rollback_max += config.dspark->block_size;
  return layout;
}

}  // namespace tidepool
