#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "formats/config.h"
#include "text/engram_token_map.h"
#include "text/tokenizer.h"
#include "text/tokenizer_control.h"
#include "train/model.h"
#include "train/recipe.h"

namespace tidepool {
namespace {

/// What the repository trains its own model from.
class Pocket : public testing::Test {
 protected:
  const std::filesystem::path folder_ = std::filesystem::path(TIDEPOOL_SOURCE_DIR) / "models/pocket";
  const Recipe recipe_ = load_recipe(folder_ / "recipe.json");
  const ModelConfig config_ = load_config(folder_ / recipe_.config);
  const Tokenizer tokenizer_ = Tokenizer::load(folder_ / recipe_.tokenizer);
};

TEST_F(Pocket, ConfigAndVocabularyFit) {
  EXPECT_EQ(static_cast<size_t>(config_.vocab_size), tokenizer_.vocabulary_size());
  (void)require_control_tokens(tokenizer_, tokenizer_.vocabulary_size());
  const EngramTokenMap map = make_engram_token_map(tokenizer_);
  EXPECT_EQ(config_.engram->compressed_vocab_size, map.compressed_vocabulary);
  const ParameterSet<float> parameters(config_);
  const TrainingModel<float> model(config_, map.compressed_ids, parameters);  // checks Engram's table sizes
  EXPECT_EQ(model.layer_table().decoder_begin, 4U);
}

/// Two sources of ratio 2 and one of ratio 1, an indexer of each kind, a pool that leaves entries out, Engram, drafts,
/// at least 16 experts, a vision tower.
TEST_F(Pocket, HasEveryMechanismOfTheReleasedModel) {
  const LayerTable table = make_layer_table(config_);
  const auto count = [&](auto is_one) { return std::ranges::count_if(table.layers, is_one); };
  EXPECT_EQ(count([](const LayerPlan& p) { return p.mode == LayerMode::kFull && p.ratio == 2; }), 2);
  EXPECT_EQ(count([](const LayerPlan& p) { return p.mode == LayerMode::kFull && p.ratio == 1; }), 1);
  EXPECT_GE(count([](const LayerPlan& p) { return p.mode == LayerMode::kReindex && p.uses_candidates; }), 1);
  EXPECT_GE(count([](const LayerPlan& p) { return p.mode == LayerMode::kReuse; }), 1);
  EXPECT_GE(count([](const LayerPlan& p) { return p.mode == LayerMode::kWindow; }), 1);
  EXPECT_LT(config_.candidate_topk_blocks * config_.candidate_block_size, 4096);
  EXPECT_TRUE(config_.engram.has_value());
  EXPECT_TRUE(config_.dspark.has_value());
  EXPECT_TRUE(config_.vision.has_value());
  EXPECT_GE(config_.n_routed_experts, 16);
}

/// The released layout packs two FP4 values a byte, FP8 one, BF16 half a value; scales are a 32nd and less.
TEST_F(Pocket, StaysWithinTwentyFourMegabytes) {
  const ParameterSet<float> parameters(config_);
  double bytes = 0;
  for (const Parameter<float>& parameter : parameters.all()) {
    const auto values = static_cast<double>(parameter.value.rows() * parameter.value.cols());
    switch (parameter.format) {
      case WeightFormat::kFp4Block32: bytes += values * (0.5 + 1.0 / 32); break;
      case WeightFormat::kFp8Tile32: bytes += values * (1 + 1.0 / 1024); break;
      case WeightFormat::kFp8Row32: bytes += values * (1 + 1.0 / 32); break;
      case WeightFormat::kBf16: bytes += values * 2; break;
      case WeightFormat::kFloat32: bytes += values * 4; break;
    }
  }
  EXPECT_LT(bytes, 24e6);
  RecordProperty("bytes", std::to_string(bytes));
}

}  // namespace
}  // namespace tidepool
