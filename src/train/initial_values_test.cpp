#include "train/initial_values.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tidepool {
namespace {

ModelConfig golden_config() {
  return load_config(std::string(TIDEPOOL_GOLDEN_DIR) + "/ckpt/config.json");
}

double deviation(const Parameter<float>& parameter) {
  double squares = 0;
  for (size_t row = 0; row < parameter.value.rows(); ++row) {
    for (const float value : parameter.value.data.row(row))
      squares += static_cast<double>(value) * static_cast<double>(value);
  }
  return std::sqrt(squares / static_cast<double>(parameter.value.rows() * parameter.value.cols()));
}

TEST(InitialValues, AreThoseOfTheirKind) {
  const ModelConfig config = golden_config();
  ParameterSet<float> set(config);
  initialise(set, config, 1);
  EXPECT_EQ(set.get("layers.1.attn_norm.weight").value.data.at(0, 5), 1.0F);
  EXPECT_EQ(set.get("layers.1.engram.q_weight").value.data.at(3, 5), 1.0F);
  EXPECT_EQ(set.get("layers.1.attn.attn_sink").value.data.at(0, 2), 0.0F);
  EXPECT_EQ(set.get("layers.1.ffn.gate.bias_vl").value.data.at(0, 2), 0.0F);
  // A deviation of 3 in a thousand over 12,288 values would be some 5 standard errors.
  EXPECT_NEAR(deviation(set.get("layers.1.attn.wq_a.weight")), 0.02, 0.0003);
  EXPECT_NEAR(deviation(set.get("layers.1.ffn.shared_experts.w2.weight")), 0.02 / std::sqrt(16.0), 0.0001);
}

TEST(InitialValues, SubBlocksStartOnStreamsOfTheirOwn) {
  const ModelConfig config = golden_config();
  ParameterSet<float> set(config);
  initialise(set, config, 1);
  EXPECT_EQ(set.get("layers.1.hc_attn_base").value.data.at(0, 2), 2.0F);
  EXPECT_EQ(set.get("layers.1.hc_ffn_base").value.data.at(0, 3), 2.0F);
  EXPECT_EQ(set.get("layers.1.hc_ffn_base").value.data.at(0, 2), -2.0F);
  EXPECT_EQ(set.get("layers.1.hc_ffn_base").value.data.at(0, 8), 4.0F);   // B[0][0]
  EXPECT_EQ(set.get("layers.1.hc_ffn_base").value.data.at(0, 13), 4.0F);  // B[1][1]
}

TEST(InitialValues, DependOnSeedAndNameAlone) {
  const ModelConfig config = golden_config();
  ModelConfig other = config;
  other.dspark.reset();
  other.compress_ratios.resize(static_cast<size_t>(config.num_hidden_layers));
  ParameterSet<float> a(config);
  ParameterSet<float> b(other);
  ParameterSet<float> c(config);
  initialise(a, config, 1);
  initialise(b, other, 1);
  initialise(c, config, 2);
  const auto first = [](ParameterSet<float>& set, const char* name) { return set.get(name).value.data.at(0, 0); };
  EXPECT_EQ(first(a, "layers.3.attn.wkv.weight"), first(b, "layers.3.attn.wkv.weight"));
  EXPECT_NE(first(a, "layers.3.attn.wkv.weight"), first(c, "layers.3.attn.wkv.weight"));
  EXPECT_NE(first(a, "layers.3.attn.wkv.weight"), first(a, "layers.4.attn.wkv.weight"));
}

}  // namespace
}  // namespace tidepool
