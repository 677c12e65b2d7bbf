#include "train/parameter_set.h"

#include <gtest/gtest.h>

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
