#include "train/parameter_set.h"

#include <gtest/gtest.h>

#include <set>

#include "formats/checkpoint.h"

namespace tidepool {
namespace {

std::shared_ptr<const Checkpoint> golden() {
  return Checkpoint::open(std::string(TIDEPOOL_GOLDEN_DIR) + "/ckpt");
}

TEST(ParameterSet, HoldsEachReleasedTensorOnceAndScalesOfNone) {
  const auto checkpoint = golden();
  const ParameterSet<float> set(checkpoint->config());
  size_t weights = 0;
  for (const Checkpoint::TensorInfo& tensor : checkpoint->tensors()) {
    if (tensor.name.ends_with(".scale")) continue;
    EXPECT_TRUE(set.has(tensor.name)) << tensor.name;
    ++weights;
  }
  EXPECT_EQ(set.all().size(), weights);
}

TEST(ParameterSet, IsCountedBeforeItIsMade) {
  EXPECT_EQ(parameter_count(golden()->config()), ParameterSet<float>(golden()->config()).count());
}

TEST(ParameterSet, ReadsTheGoldenCheckpointExactly) {
  const auto checkpoint = golden();
  ParameterSet<float> set(checkpoint->config());
  load_parameters(*checkpoint, set);
  // Every layout once, against the engine's own reader of matrices.
  for (const char* stem : {"embed", "layers.2.attn.wq_b", "layers.0.ffn.experts.1.w2", "layers.2.hc_attn_fn"}) {
    const MatrixView matrix = checkpoint->matrix(stem);
    const std::string name = set.has(stem) ? std::string(stem) : std::string(stem) + ".weight";
    const Span2d<float> values = set.get(name).value.data;
    ASSERT_EQ(values.rows, matrix.out) << name;
    ASSERT_EQ(values.cols, matrix.in) << name;
    std::vector<float> row(matrix.in);
    for (const size_t r : {size_t{0}, matrix.out - 1}) {
      dequantise_row(matrix, r, row);
      EXPECT_TRUE(std::ranges::equal(values.row(r), row)) << name;
    }
  }
}

TEST(ParameterSet, PutsEachTensorIntoItsPublishedGroup) {
  const ParameterSet<float> set(golden()->config());
  EXPECT_EQ(set.get("embed.weight").rule, UpdateRule::kSinkhorn);
  EXPECT_EQ(set.get("layers.1.attn.wkv.weight").rule, UpdateRule::kMuon);
  EXPECT_EQ(set.get("layers.1.attn.wq_b.weight").rule, UpdateRule::kMuonHeads);
  EXPECT_EQ(set.get("layers.1.attn.wq_b.weight").head_rows, 64U);
  EXPECT_EQ(set.get("layers.2.attn.indexer.wq_b.weight").head_rows, 32U);
  EXPECT_EQ(set.get("layers.1.attn_norm.weight").rule, UpdateRule::kAdam);
  EXPECT_TRUE(set.get("layers.1.attn_norm.weight").decays);
  EXPECT_FALSE(set.get("layers.1.hc_attn_base").decays);
  EXPECT_EQ(set.get("layers.1.ffn.gate.bias").rule, UpdateRule::kBalance);
}

/// "Optimisers" in docs/training.md, for every tensor by its name.
TEST(ParameterSet, RulesAreThoseOfTheTableOfGroups) {
  const ParameterSet<float> set(golden()->config());
  const std::set<std::string> balanced = {"embed.weight",
                                          "head.weight",
                                          "layers.1.engram.embed.weight",
                                          "layers.2.engram.embed.weight",
                                          "mtp.2.markov_head.embed.weight",
                                          "mtp.2.markov_head.head.weight"};
  std::set<std::string> found;
  for (const Parameter<float>& parameter : set.all()) {
    const std::string& name = parameter.name;
    if (parameter.rule == UpdateRule::kSinkhorn) found.insert(name);
    EXPECT_EQ(parameter.rate, name.ends_with("engram.embed.weight") ? 5 : 1) << name;
    EXPECT_EQ(parameter.rule == UpdateRule::kMuonHeads, name.ends_with("wq_b.weight")) << name;
    const bool is_norm =
        name.ends_with("norm.weight") || name.ends_with("norm1.weight") || name.ends_with("norm2.weight");
    const bool is_bias = name.ends_with(".bias") && !name.ends_with("gate.bias");
    const bool is_factor = name.ends_with("attn_sink") || name.ends_with("_base") || name.ends_with("_scale") ||
                           name.ends_with("engram.q_weight") || name.ends_with("engram.k_weight");
    if (is_norm || is_bias || is_factor) {
      EXPECT_EQ(parameter.rule, UpdateRule::kAdam) << name;
    }
    const bool is_matrix = parameter.rule == UpdateRule::kMuon || parameter.rule == UpdateRule::kMuonHeads;
    EXPECT_EQ(parameter.decays, is_matrix || name.ends_with("norm.weight")) << name;
  }
  EXPECT_EQ(found, balanced);
}

TEST(ParameterSet, ClearsGradientsOnly) {
  ParameterSet<double> set(golden()->config());
  Parameter<double>& norm = set.get("norm.weight");
  norm.value.data.at(0, 0) = 2;
  norm.value.grad.at(0, 0) = 3;
  set.clear_gradients();
  EXPECT_EQ(norm.value.data.at(0, 0), 2);
  EXPECT_EQ(norm.value.grad.at(0, 0), 0);
}

}  // namespace
}  // namespace tidepool
