// One block at a time from the recorded streams: the sharpest test of the layers (golden README, "one block at a
// time").
#include "model/block.h"

#include <gtest/gtest.h>

#include <map>

#include "model/embedding.h"
#include "model/encoder.h"
#include "model/golden_test_support.h"

namespace tidepool {
namespace {

/// Keeps whole tensors by "name.layer".
class TensorCollector final : public Probe {
 public:
  bool wants(std::string_view) override { return false; }
  void record(std::string_view name, int64_t layer, int64_t, Span2d<const float> values) override {
    std::vector<float>& all = tensors[std::string(name) + "." + std::to_string(layer)];
    for (size_t row = 0; row < values.rows; ++row) {
      all.insert(all.end(), values.row(row).begin(), values.row(row).end());
    }
  }
  void record_ints(std::string_view, int64_t, int64_t, std::span<const int64_t>) override {}

  std::map<std::string, std::vector<float>> tensors;
};

/// Runs every layer over the case's tokens, each fed with the recorded stream and mix of the layer before.
std::map<std::string, std::vector<float>> run_blocks(const Model& model, const golden::Case& c,
                                                     const std::string& prefix) {
  ThreadPool pool(2);
  const Math math({pool, kernels::reference_kernels()}, model.options().numerics);
  Arena arena;
  TensorCollector collector;
  SequenceState state = model.new_sequence();
  const std::vector<InputToken> tokens = c.tokens("input_ids");
  state.append(tokens);
  state.begin_decoder_rows(0);
  ForwardPass pass = make_pass(arena, {{&state, 0, tokens.size(), 0}}, model.pass_shape(), model.ropes());
  embed_tokens(model, math, pass);
  for (const LayerPlan& plan : model.layer_table().layers) {
    if (plan.index > 0) {
      const std::string before = "." + std::to_string(plan.index - 1);
      std::ranges::copy(c.floats(prefix + "stream" + before), pass.stream.data);
      std::ranges::copy(c.floats(prefix + "pre_mix" + before), pass.pre_mix.data);
    }
    pass.probe = &collector;
    enter_layer(model, math, plan.index, pass);
    if (plan.mode == LayerMode::kFull) write_layer_kv(model, math, plan.index, pass);
    run_layer(model, math, plan.index, pass);
    pass.probe = nullptr;
  }
  return std::move(collector.tensors);
}

struct BlockBounds {
  double p90;
  double max;
};

void expect_within(const std::map<std::string, std::vector<float>>& actual, const golden::Case& c,
                   const std::string& prefix, const std::string& name, size_t layers, size_t rows, BlockBounds bounds) {
  for (size_t layer = 0; layer < layers; ++layer) {
    const std::string key = name + "." + std::to_string(layer);
    if (c.file().find(prefix + key) == nullptr) continue;
    const std::vector<double> errors = golden::row_errors(actual.at(key), c.floats(prefix + key), rows);
    EXPECT_LE(golden::quantile(errors, 0.9), bounds.p90) << key;
    EXPECT_LE(golden::quantile(errors, 1.0), bounds.max) << key;
  }
}

class BlockAlone : public testing::TestWithParam<const char*> {};

TEST_P(BlockAlone, OfficialNumericsStayWithinTheStatedNoise) {
  const golden::Case c(GetParam());
  const Model model = golden::load_model("ckpt");
  const auto actual = run_blocks(model, c, "");
  const size_t rows = c.tokens("input_ids").size();
  expect_within(actual, c, "", "attn_out", 8, rows, {0.01, 0.2});
  expect_within(actual, c, "", "ffn_out", 8, rows, {0.01, 0.2});
  expect_within(actual, c, "", "stream", 8, rows, {0.005, 0.03});
}

INSTANTIATE_TEST_SUITE_P(Cases, BlockAlone, testing::Values("prefill_5", "prefill_64"));

TEST(BlockAlone, HpNumericsAgreeToBinary32Noise) {
  const golden::Case c("prefill_5");
  ModelOptions options;
  options.numerics = kHpNumerics;
  const Model model = golden::load_model("ckpt", options);
  const auto actual = run_blocks(model, c, "hp.");
  // Binary32 against binary64: 2^-24 times the square root of the longest sum (768), with room for a dozen operators.
  for (const std::string name : {"attn_out", "ffn_out", "stream", "pre_mix"}) {
    expect_within(actual, c, "hp.", name, 8, 5, {1e-5, 1e-5});
  }
  // The model's own grids are bit patterns: any difference is a flip, and at this size there is none.
  for (const std::string name : {"window_kv"})
    expect_within(actual, c, "hp.", name, 8, 5, {0, 0});
}

/// The encoder's streams and mixes behind a case's prompt.
std::vector<float> encoder_streams(const Model& model, const golden::Case& c, Probe* probe) {
  ThreadPool pool(2);
  const Math math({pool, kernels::reference_kernels()}, model.options().numerics);
  Arena arena;
  SequenceState state = model.new_sequence();
  const std::vector<InputToken> tokens = c.tokens("input_ids");
  state.append(tokens);
  ForwardPass pass = make_pass(arena, {{&state, 0, tokens.size(), 0}}, model.pass_shape(), model.ropes());
  pass.probe = probe;
  embed_tokens(model, math, pass);
  run_encoder(model, math, pass);
  std::vector<float> result(pass.stream.data, pass.stream.data + pass.rows * pass.stream.cols);
  result.insert(result.end(), pass.pre_mix.data, pass.pre_mix.data + pass.rows * pass.pre_mix.cols);
  return result;
}

/// A probe wants the streams behind each layer; without one they are left and entered in one pass.
TEST(Block, StreamsThatCrossLayersInOnePassHaveTheBitsOfTwo) {
  const Model model = golden::load_model("ckpt");
  for (const std::string name : {"prefill_5", "prefill_64"}) {
    const golden::Case c(name);
    TensorCollector collector;
    EXPECT_EQ(encoder_streams(model, c, nullptr), encoder_streams(model, c, &collector)) << name;
    EXPECT_TRUE(collector.tensors.contains("stream.1")) << name;
  }
}

}  // namespace
}  // namespace tidepool
