// What training computes equals what the engine computes, on the golden checkpoint: each operator is given what the
// engine's was given.
#include <gtest/gtest.h>

#include <map>

#include "base/file.h"
#include "base/temp_folder.h"
#include "model/engram.h"
#include "model/golden_test_support.h"
#include "model/model.h"
#include "text/engram_token_map.h"
#include "text/tokenizer.h"
#include "train/engram.h"
#include "train/export.h"
#include "train/gradient_check.h"
#include "train/initial_values.h"
#include "train/model_test_support.h"
#include "train/moe.h"

namespace tidepool {
namespace {

/// Keeps whole tensors by "name.layer".
class LayerCollector final : public Probe {
 public:
  bool wants(std::string_view) override { return true; }
  void record(std::string_view name, int64_t layer, int64_t, Span2d<const float> values) override {
    std::vector<float>& all = tensors[std::string(name) + "." + std::to_string(layer)];
    for (size_t row = 0; row < values.rows; ++row)
      all.insert(all.end(), values.row(row).begin(), values.row(row).end());
  }
  void record_ints(std::string_view, int64_t, int64_t, std::span<const int64_t>) override {}

  std::map<std::string, std::vector<float>> tensors;
};

std::vector<int32_t> ids_of(std::span<const InputToken> tokens) {
  std::vector<int32_t> ids;
  for (const InputToken& token : tokens)
    ids.push_back(token.id);
  return ids;
}

/// A value that crosses a step of a grid, or a choice that flips, moves a row by some half per cent (the golden
/// README's bounds for binary32 activations on all grids).
void expect_equal_logits(std::span<const float> actual, std::span<const float> expected, size_t rows) {
  const std::vector<double> errors = golden::row_errors(actual, expected, rows);
  EXPECT_LE(golden::quantile(errors, 0.5), 0.01);
  EXPECT_LE(golden::quantile(errors, 1.0), 0.1);
}

/// One pass of the engine over a golden prompt, all layers over all rows, in binary32 throughout.
class EngineEquality : public testing::Test {
 protected:
  EngineEquality() : model_(golden::load_model("ckpt", hp())), parameters_(model_.config()), pool_(2) {
    load_parameters(model_.checkpoint(), parameters_);
    tokens_ = golden::Case("prefill_31").tokens("input_ids");
    Arena arena;
    SequenceState state = model_.new_sequence();
    const ForwardRequest request{&state, tokens_, 0, tokens_.size()};
    const Span2d<const float> logits =
        forward(model_, {pool_, kernels::reference_kernels()}, arena, {&request, 1}, &engine_);
    logits_.assign(logits.data, logits.data + logits.rows * logits.cols);
  }
  static ModelOptions hp() {
    ModelOptions options;
    options.numerics = kHpNumerics;
    return options;
  }
  [[nodiscard]] Leaf<float> recorded(const std::string& name, size_t layer) const {
    const std::vector<float>& values = engine_.tensors.at(name + "." + std::to_string(layer));
    Leaf<float> leaf(tokens_.size(), values.size() / tokens_.size());
    leaf.data() = values;
    return leaf;
  }
  /// Binary32 sums in two orders differ by some 2^-24 of their length's root; where that moves a value over a step of
  /// the FP8 grid, a term changes by up to 1/16, a row of some hundred terms by about a hundredth.
  static void expect_rows(const Value<float>& actual, Leaf<float> expected) {
    const std::vector<double> errors =
        golden::row_errors({actual.data.data, actual.rows() * actual.cols()}, expected.data(), actual.rows());
    EXPECT_LE(golden::quantile(errors, 0.5), 1e-5);
    EXPECT_LE(golden::quantile(errors, 1.0), 0.02);
  }

  Model model_;
  ParameterSet<float> parameters_;
  ThreadPool pool_;
  std::vector<InputToken> tokens_;
  LayerCollector engine_;
  std::vector<float> logits_;  ///< the engine's, of every row
};

TEST_F(EngineEquality, MixtureOfExpertsOnGoldenWeights) {
  Tape<float> tape(pool_, Tape<float>::Mode::kForward);
  const std::vector<SampleRows> samples = {{0, tokens_.size(), 0}};
  for (const size_t layer : {size_t{0}, size_t{3}}) {
    Leaf<float> x = recorded("ffn_in", layer);
    const auto parameters = bind_moe(parameters_, "layers." + std::to_string(layer) + ".ffn.",
                                     static_cast<size_t>(model_.config().n_routed_experts));
    const MoeResult<float> result =
        mixture_of_experts(tape, {model_.moe(), kFullQat, 0}, parameters, x.value(), {samples, {}});
    expect_rows(result.y, recorded("ffn_out", layer));
  }
}

TEST_F(EngineEquality, EngramOnGoldenWeights) {
  Tape<float> tape(pool_, Tape<float>::Mode::kForward);
  const std::vector<SampleRows> samples = {{0, tokens_.size(), 0}};
  for (size_t slot = 0; slot < 2; ++slot) {
    const size_t layer = slot + 1;
    Leaf<float> stream = recorded("stream", layer - 1);
    const Value<float> y =
        engram(tape, kFullQat, bind_engram(parameters_, layer),
               hash_rows(*model_.engram_hash(), slot, tokens_, samples), stream.value(), model_.norm_eps());
    expect_rows(y, recorded("engram_out", layer));
  }
}

TEST_F(EngineEquality, LogitsOnGoldenWeights) {
  expect_equal_logits(trained_logits(model_.config(), parameters_, golden::token_map(), ids_of(tokens_)), logits_,
                      tokens_.size());
}

/// What training rounds in a pass is what its export holds: masters of no grid, written as a released folder, read and
/// run by the engine.
TEST(EngineOfAnExport, LogitsOfFreshMasters) {
  const std::string source = TIDEPOOL_SOURCE_DIR "/models/ablations";
  const ModelConfig config = load_config(source + "/config.json");
  ParameterSet<float> parameters(config);
  initialise(parameters, config, 1);
  const TempFolder folder;
  export_model({config, read_file(source + "/tokenizer.json", uint64_t{1} << 20U), folder.path()}, parameters);
  const std::vector<int32_t> token_map =
      make_engram_token_map(Tokenizer::load(folder.path() / "tokenizer.json")).compressed_ids;
  ModelOptions options;
  options.numerics = kHpNumerics;
  const Model model(Checkpoint::open(folder.path()), token_map, options);
  std::vector<InputToken> tokens(96);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i].id = static_cast<int32_t>(i * i * 31 % static_cast<size_t>(config.vocab_size));
  ThreadPool pool(2);
  Arena arena;
  SequenceState state = model.new_sequence();
  const ForwardRequest request{&state, tokens, 0, tokens.size()};
  const Span2d<const float> logits = forward(model, {pool, kernels::reference_kernels()}, arena, {&request, 1});
  expect_equal_logits(trained_logits(config, parameters, token_map, ids_of(tokens)),
                      {logits.data, logits.rows * logits.cols}, tokens.size());
}

}  // namespace
}  // namespace tidepool
