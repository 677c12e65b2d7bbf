#include "model/layer_table.h"

#include <gtest/gtest.h>

#include "model/golden_test_support.h"

namespace tidepool {
namespace {

/// The released stack's attention plan. (docs/model.md 2.1)
ModelConfig released_attention_config() {
  ModelConfig config;
  config.num_hidden_layers = 40;
  config.compress_ratios = {0, 0};
  config.compress_ratios.insert(config.compress_ratios.end(), 18, 2);
  config.compress_ratios.insert(config.compress_ratios.end(), 20, 1);
  config.kv_source_layer_ids = {2, 8, 14, 20};
  config.index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
  config.candidate_source_layer_id = 20;
  config.sliding_window = 128;
  config.head_dim = 512;
  config.index_head_dim = 128;
  return config;
}

TEST(LayerTable, ReleasedStackHasThePublishedModes) {
  const LayerTable table = make_layer_table(released_attention_config());
  std::map<LayerMode, int> count;
  for (const LayerPlan& plan : table.layers)
    ++count[plan.mode];
  // "Full 4, Reindex 4, Reuse 30, SWA-only 2" (docs/model.md 2.1)
  EXPECT_EQ(count[LayerMode::kFull], 4);
  EXPECT_EQ(count[LayerMode::kReindex], 4);
  EXPECT_EQ(count[LayerMode::kReuse], 30);
  EXPECT_EQ(count[LayerMode::kWindow], 2);
  EXPECT_EQ(table.decoder_begin, 20U);
  EXPECT_EQ(table.layers[13].kv_source_layer, 8);
  EXPECT_EQ(table.layers[31].kv_source_layer, 20);
  EXPECT_EQ(table.layers[31].index_source_layer, 28);
  EXPECT_TRUE(table.layers[20].makes_candidates);
  EXPECT_FALSE(table.layers[20].uses_candidates);
  EXPECT_TRUE(table.layers[36].uses_candidates);
}

TEST(LayerTable, ReleasedSequenceCostsThePublishedBytes) {
  const ModelConfig config = released_attention_config();
  const KvLayout layout = make_kv_layout(config, make_layer_table(config));
  EXPECT_EQ(layout.sources[0].entry_bytes, 288U);
  EXPECT_EQ(layout.sources[0].key_bytes, 68U);
  EXPECT_EQ(layout.window_row_bytes, 528U);
  EXPECT_EQ(layout.block_bytes, 890U * 128U);  // 890 bytes a token (docs/kv_cache.md)
}

TEST(LayerTable, WithoutGlobalKvEverythingIsEncoder) {
  ModelConfig config = released_attention_config();
  config.compress_ratios.assign(40, 0);
  config.kv_source_layer_ids.clear();
  config.index_source_layer_ids.clear();
  config.candidate_source_layer_id = -1;
  const LayerTable table = make_layer_table(config);
  EXPECT_EQ(table.decoder_begin, 40U);
  EXPECT_EQ(table.layers[39].kv_source_layer, -1);
}

TEST(LayerTable, GoldenStackReadsItsModesFromTheConfig) {
  const LayerTable table = make_layer_table(load_config(golden::folder() / "ckpt" / "config.json"));
  const std::vector<LayerMode> expected{LayerMode::kWindow, LayerMode::kWindow, LayerMode::kFull,    LayerMode::kReuse,
                                        LayerMode::kReuse,  LayerMode::kFull,   LayerMode::kReindex, LayerMode::kReuse};
  for (size_t layer = 0; layer < expected.size(); ++layer)
    EXPECT_EQ(table.layers[layer].mode, expected[layer]) << layer;
  EXPECT_EQ(table.decoder_begin, 5U);
  EXPECT_EQ(table.layers[1].engram_slot, 0);
  EXPECT_EQ(table.layers[2].engram_slot, 1);
}

}  // namespace
}  // namespace tidepool
