#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "formats/config.h"
#include "kv/kv_layout.h"

namespace tidepool {

/// What a layer does about global attention. (docs/model.md 2.1)
enum class LayerMode : uint8_t {
  kWindow,   ///< the sliding window only
  kFull,     ///< own compressor, own index keys, own index query, fresh top-k
  kReindex,  ///< KV and index keys of the last Full layer; own index query, fresh top-k
  kReuse,    ///< KV of the last Full layer and the last top-k computed against it
  kDraft,    ///< a stage of the draft head: the whole window as the backbone left it, and every row of its own block
};

[[nodiscard]] std::string_view layer_mode_name(LayerMode mode);  ///< "window", "full", "reindex", "reuse", "draft"

/// One layer's part in the plan; everything comes from the config.
struct LayerPlan {
  size_t index = 0;
  LayerMode mode = LayerMode::kWindow;
  int64_t ratio = 0;                ///< tokens per global entry; 0 without global attention
  int64_t kv_source_layer = -1;     ///< layer whose global KV it reads; -1 for none
  size_t kv_slot = 0;               ///< that layer's place among KvLayout::sources
  int64_t index_source_layer = -1;  ///< layer whose top-k it uses; -1 for none
  bool makes_candidates = false;    ///< chooses the candidate pool
  bool uses_candidates = false;     ///< its top-k is restricted to the pool
  int64_t engram_slot = -1;         ///< place among EngramConfig::layer_ids; -1 for none
  bool is_decoder = false;
};

/// The whole stack. The decoder begins at the last layer that owns global KV: from there on, every layer reads that one
/// projection of the encoder's output, so prompt tokens need not enter it. Without global KV all layers are encoder.
struct LayerTable {
  std::vector<LayerPlan> layers;
  size_t decoder_begin = 0;              ///< the decoder's first layer; layers.size() where there is none
  std::vector<size_t> kv_source_layers;  ///< the Full layers, ascending; a place in it is a kv_slot
};

/// The stack that a checked config describes. (docs/model.md 2.1)
[[nodiscard]] LayerTable make_layer_table(const ModelConfig& config);

/// How the KV cache stores its rows. The defaults are the released formats; others are for measuring what those cost.
struct KvFormats {
  RowFormat window = RowFormat::kFp8Block32;
  RowFormat entry = RowFormat::kFp4Block16;
  RowFormat key = RowFormat::kFp4Block32;
};

/// What a sequence of this model keeps, with all derived sizes filled in. (docs/kv_cache.md)
[[nodiscard]] KvLayout make_kv_layout(const ModelConfig& config, const LayerTable& table,
                                      const KvFormats& formats = {});
/// The same with windows for the draft stages of a config that has them.
[[nodiscard]] KvLayout make_kv_layout_with_drafts(const ModelConfig& config, const LayerTable& table,
                                                  const KvFormats& formats = {});

}  // namespace tidepool
