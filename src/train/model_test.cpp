#include "train/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/golden_test_support.h"
#include "model/vision.h"
#include "train/gradient_check.h"
#include "train/initial_values.h"
#include "train/model_test_support.h"
#include "train/output_head.h"

namespace tidepool {
namespace {

TokenBatch batch_of(const std::vector<std::vector<int32_t>>& samples, const std::vector<size_t>& decoder_begins = {}) {
  TokenBatch batch;
  for (size_t s = 0; s < samples.size(); ++s) {
    const std::vector<int32_t>& ids = samples[s];
    batch.segments.push_back({batch.rows(), ids.size(), decoder_begins.empty() ? 0 : decoder_begins[s]});
    for (size_t i = 0; i < ids.size(); ++i) {
      batch.ids.push_back(ids[i]);
      batch.targets.push_back(i + 1 < ids.size() ? ids[i + 1] : 0);
      batch.weights.push_back(i + 1 < ids.size() ? 1.0F : 0.0F);
    }
  }
  return batch;
}

// The golden checkpoint

/// Logits of every row of a golden prompt with these pictures.
std::vector<float> golden_logits(const std::vector<int32_t>& ids, const std::string& checkpoint_name,
                                 std::vector<SamplePicture> pictures = {}) {
  const auto checkpoint = Checkpoint::open(golden::folder() / checkpoint_name);
  ParameterSet<float> parameters(checkpoint->config());
  load_parameters(*checkpoint, parameters);
  return trained_logits(checkpoint->config(), parameters,
                        checkpoint->config().engram ? golden::token_map() : std::vector<int32_t>(), ids,
                        std::move(pictures));
}

class GoldenLogits : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(GoldenLogits, ForwardEqualsTheReferenceInBinary64) {
  // The bounds of the golden README for binary32 activations on all grids: a value that crosses a step of a grid, or a
  // choice that flips, moves a row by some half per cent; rows in which nothing crosses agree to 1e-5 or so.
  const auto& [name, checkpoint] = GetParam();
  const golden::Case c(name);
  const std::vector<int64_t> wide = c.ints("input_ids");
  const std::vector<float> logits = golden_logits({wide.begin(), wide.end()}, checkpoint);
  const std::vector<double> errors = golden::row_errors(logits, c.floats("logits_hp"), wide.size());
  EXPECT_LE(golden::quantile(errors, 0.5), 0.01);
  EXPECT_LE(golden::quantile(errors, 0.9), 0.025);
  EXPECT_LE(golden::quantile(errors, 1.0), 0.1);
  if (wide.size() > 5) return;
  const std::vector<float> noise = c.floats("row_hp_noise");
  for (size_t row = 0; row < errors.size(); ++row)
    EXPECT_LE(errors[row], noise[row] < 1e-4F ? 1e-3 : 0.02) << row;
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenLogits,
                         testing::Values(std::pair("prefill_1", "ckpt"), std::pair("prefill_2", "ckpt"),
                                         std::pair("prefill_5", "ckpt"), std::pair("prefill_31", "ckpt"),
                                         std::pair("prefill_64", "ckpt"), std::pair("prefill_257", "ckpt"),
                                         std::pair("textonly_prefill_40", "ckpt_textonly")));

TEST(GoldenPictures, SlowForwardOfTwoPicturesEqualsTheReference) {
  const golden::Case c("image_text");
  const std::vector<int64_t> wide = c.ints("input_ids");
  const ModelConfig config = load_config(golden::folder() / "ckpt" / "config.json");
  std::vector<SamplePicture> pictures;
  for (const std::string name : {"img0", "img1"}) {
    const std::vector<int64_t> shape = c.shape(name + ".rgb");
    RgbImage image(static_cast<size_t>(shape[1]), static_cast<size_t>(shape[0]));
    std::ranges::transform(c.ints(name + ".rgb"), image.pixels.begin(),
                           [](int64_t v) { return static_cast<uint8_t>(v); });
    pictures.push_back(
        {static_cast<size_t>(c.ints(name + ".start")[0]),
         std::make_shared<const PreparedImage>(prepare_image(image_plan_config(*config.vision), image, name))});
  }
  const std::vector<float> logits = golden_logits({wide.begin(), wide.end()}, "ckpt", std::move(pictures));
  std::vector<float> expected = c.floats("logits_hp");
  expected.resize(logits.size());  // decode steps follow
  const std::vector<double> errors = golden::row_errors(logits, expected, wide.size());
  // The bounds of the golden README's image case, and a little for another order of sums.
  EXPECT_LE(golden::quantile(errors, 0.5), 0.025);
  EXPECT_LE(golden::quantile(errors, 0.9), 0.05);
  EXPECT_LE(golden::quantile(errors, 1.0), 0.16);
}

// A tiny model with every mechanism

/// Window, Full and Reuse at ratio 2; Full, Reindex and Reuse at ratio 1 with a candidate pool; Engram in both halves.
ModelConfig tiny_config() {
  ModelConfig config = load_config(golden::folder() / "ckpt" / "config.json");
  config.vision.reset();
  config.image_token_id.reset();
  config.dspark.reset();
  config.vocab_size = 512;
  config.hidden_size = 32;
  config.moe_intermediate_size = 32;
  config.num_hidden_layers = 6;
  config.num_attention_heads = 2;
  config.head_dim = 32;
  config.qk_rope_head_dim = 8;
  config.q_lora_rank = 32;
  config.o_lora_rank = 32;
  config.o_groups = 1;
  config.rms_norm_eps = 1e-6;
  config.n_routed_experts = 4;
  config.sliding_window = 4;
  config.compress_ratios = {0, 2, 2, 1, 1, 1};
  config.kv_source_layer_ids = {1, 3};
  config.index_source_layer_ids = {1, 3, 4};
  config.index_n_heads = 2;
  config.index_topk = 3;
  config.candidate_source_layer_id = 3;
  config.candidate_topk_blocks = 2;
  config.candidate_block_size = 2;
  config.hc_mult = 2;
  config.engram->layer_ids = {1, 4};
  check_config(config, "tiny config");
  return config;
}

/// The same with eyes: cells of 2 x 2 patches of 4 pixels.
ModelConfig seeing_config() {
  ModelConfig config = tiny_config();
  config.image_token_id = 400;
  config.vision = VisionConfig{.num_hidden_layers = 1,
                               .hidden_size = 16,
                               .num_attention_heads = 2,
                               .intermediate_size = 8,
                               .patch_size = 4,
                               .rope_theta = 100,
                               .downsample_ratio = 2,
                               .max_image_tokens = 64,
                               .min_pixels = 16,
                               .max_wh_ratio = {}};
  check_config(config, "tiny config");
  return config;
}

/// 12 x 8 pixels of noise: 3 x 2 patches, 2 x 1 cells, a span of 5.
std::shared_ptr<const PreparedImage> tiny_picture(uint64_t seed) {
  TestRandom random(seed);
  RgbImage image(12, 8);
  for (uint8_t& value : image.pixels)
    value = static_cast<uint8_t>(random.below(256));
  return std::make_shared<const PreparedImage>(
      prepare_image(image_plan_config(*seeing_config().vision), image, "picture"));
}

/// A picture at row 4 of the first sample and at row 2 of the second.
void show_pictures(TokenBatch& batch, uint64_t first_seed, uint64_t second_seed) {
  batch.pictures = {{4, tiny_picture(first_seed)}, {batch.segments[1].begin + 2, tiny_picture(second_seed)}};
  for (const SamplePicture& picture : batch.pictures) {
    for (size_t i = 0; i < 5; ++i) {
      batch.ids[picture.begin + i] = 400;
      batch.targets[picture.begin + i - 1] = 400;
      batch.weights[picture.begin + i - 1] = 0;
    }
  }
}

/// Its parameters: initial values, ten times as large as those of a large model, and random biases, sinks and scales,
/// so that no derivative is too small to be compared.
template <typename Real>
ParameterSet<Real> tiny_parameters(const ModelConfig& config) {
  ParameterSet<Real> parameters(config);
  initialise(parameters, config, 3);
  TestRandom random(4);
  for (Parameter<Real>& parameter : parameters.all()) {
    const bool is_matrix = parameter.rule != UpdateRule::kAdam && parameter.rule != UpdateRule::kBalance;
    for (size_t row = 0; row < parameter.value.rows(); ++row) {
      for (Real& value : parameter.value.data.row(row)) {
        if (is_matrix) value *= 10;
        if (!is_matrix) value += static_cast<Real>(0.3 * random.value());
      }
    }
  }
  return parameters;
}

std::vector<std::vector<int32_t>> tiny_samples() {
  TestRandom random(5);
  std::vector<std::vector<int32_t>> samples;
  for (const size_t count : {size_t{13}, size_t{10}}) {
    samples.emplace_back();
    for (size_t i = 0; i < count; ++i)
      samples.back().push_back(static_cast<int32_t>(random.below(400)));
  }
  return samples;
}

template <typename Real>
class TinyModel {
 public:
  explicit TinyModel(const ModelConfig& config = tiny_config())
      : config_(config),
        parameters_(tiny_parameters<Real>(config_)),
        model_(config_, golden::token_map(), parameters_) {}

  /// The loss of a batch, whose gradients are those of factor 1.
  struct Losses {
    double prediction = 0;
    double balance = 0;
    double index = 0;
    std::vector<Real> rows;
  };
  Losses run(Tape<Real>& tape, const TokenBatch& batch, const PassOptions& options, double index_weight) {
    pass_ = model_.run(tape, batch, options);
    Losses losses;
    losses.balance = pass_.balance_loss;
    if (index_weight != 0) {
      for (const IndexDivergence& divergence : index_losses(tape, *pass_.attention, index_weight))
        losses.index += index_weight * divergence.mean;
    }
    const RowTargets targets = targets_of(batch, pass_.rows(), 0.1);
    const CrossEntropy<Real> entropy =
        cross_entropy(tape, pass_.hidden, parameters_.get("head.weight").value, {targets.ids, targets.weights});
    losses.prediction = entropy.loss;
    losses.rows.assign(entropy.row_losses.begin(), entropy.row_losses.end());
    return losses;
  }

  [[nodiscard]] ParameterSet<Real>& parameters() { return parameters_; }
  [[nodiscard]] const BackbonePass<Real>& pass() const { return pass_; }

 private:
  ModelConfig config_;
  ParameterSet<Real> parameters_;
  TrainingModel<Real> model_;
  BackbonePass<Real> pass_;
};

bool is_index_parameter(std::string_view name) {
  return name.find(".indexer.") != std::string_view::npos;
}

std::vector<std::pair<std::string, Value<double>>> inputs_of(ParameterSet<double>& parameters, bool index_alone) {
  std::vector<std::pair<std::string, Value<double>>> inputs;
  for (Parameter<double>& parameter : parameters.all()) {
    if (parameter.rule == UpdateRule::kBalance) continue;  // steers choices, has no derivative
    if (!index_alone || is_index_parameter(parameter.name)) inputs.emplace_back(parameter.name, parameter.value);
  }
  return inputs;
}

TEST(TrainingModel, SlowGradientsOfTheWholeModelAreThoseOfFiniteDifferences) {
  // Prediction and balance together. The shared KV has its owner's and all readers' gradients in it, once: those of the
  // compressors would be wrong otherwise. The decoder of the first sample begins late.
  TinyModel<double> model;
  const TokenBatch batch = batch_of(tiny_samples(), {5, 0});
  expect_gradients({.loss =
                        [&](Tape<double>& tape) {
                          const auto losses = model.run(tape, batch, {.balance_weight = 0.5}, 0);
                          return losses.prediction + losses.balance;
                        },
                    .inputs = inputs_of(model.parameters(), false),
                    .entries = 2,
                    .tolerance = 1e-6});
}

TEST(TrainingModel, SlowGradientsReachTheTowerThroughTheModel) {
  // The decoder of the first sample begins inside its picture, that of the second before it.
  TinyModel<double> model(seeing_config());
  TokenBatch batch = batch_of(tiny_samples(), {7, 0});
  show_pictures(batch, 11, 12);
  std::vector<std::pair<std::string, Value<double>>> inputs;
  for (Parameter<double>& parameter : model.parameters().all()) {
    if (is_vision_parameter(parameter.name) || parameter.name == "embed.weight" ||
        parameter.name == "layers.1.ffn.gate.weight")
      inputs.emplace_back(parameter.name, parameter.value);
  }
  // Rows of the tower are small, so norms bend much above them: a smaller step than elsewhere.
  expect_gradients({.loss =
                        [&](Tape<double>& tape) {
                          const auto losses = model.run(tape, batch, {.balance_weight = 0.5}, 0);
                          return losses.prediction + losses.balance;
                        },
                    .inputs = inputs,
                    .entries = 2,
                    .step = 2e-6,
                    .tolerance = 1e-6});
}

TEST(TrainingModel, ImageRowsAreRoutedAndCountedApart) {
  TinyModel<float> model(seeing_config());
  // The bias of images alone prefers two experts so much that all image rows go there.
  for (Parameter<float>& parameter : model.parameters().all()) {
    if (!parameter.name.ends_with("gate.bias_vl")) continue;
    parameter.value.data.at(0, 1) = 100;
    parameter.value.data.at(0, 3) = 100;
  }
  TokenBatch batch = batch_of(tiny_samples(), {7, 0});
  show_pictures(batch, 11, 12);
  ThreadPool pool(1);
  Tape<float> tape(pool, Tape<float>::Mode::kForward);
  (void)model.run(tape, batch, {}, 0);
  const BiasLoads& loads = model.pass().loads;
  const auto counts = [&](const char* name) { return loads.find(name)->second; };
  EXPECT_EQ(counts("layers.0.ffn.gate.bias_vl"), (std::vector<int64_t>{0, 10, 0, 10}));
  // The decoder of the first sample has rows 7 and 8 of its picture's 4 to 8.
  EXPECT_EQ(counts("layers.3.ffn.gate.bias_vl"), (std::vector<int64_t>{0, 7, 0, 7}));
  const std::vector<int64_t> text = counts("layers.0.ffn.gate.bias");
  EXPECT_EQ(std::accumulate(text.begin(), text.end(), int64_t{0}), (23 - 10) * 2);
}

TEST(TrainingModel, APictureLeaksNothingIntoOtherSamples) {
  std::vector<std::vector<float>> losses;
  for (const uint64_t seed : {12U, 13U}) {
    TinyModel<float> model(seeing_config());
    TokenBatch batch = batch_of(tiny_samples(), {3, 0});
    show_pictures(batch, 11, seed);
    ThreadPool pool(2);
    Tape<float> tape(pool, Tape<float>::Mode::kForward, kernels::GemmPrecision::kBf16);
    losses.push_back(model.run(tape, batch, {.qat = kFullQat}, 0).rows);
  }
  const auto own = std::ptrdiff_t{13 - 3};  // rows of the first sample
  EXPECT_TRUE(std::equal(losses[0].begin(), losses[0].begin() + own, losses[1].begin()));
  EXPECT_NE(losses[0], losses[1]);  // the second sample sees its own
}

TEST(TrainingModel, SlowIndexLossTrainsTheIndexersAlone) {
  // The prediction's gradients come with it, and the indexer has none of them, so the index loss alone is compared.
  TinyModel<double> model;
  const TokenBatch batch = batch_of(tiny_samples(), {5, 0});
  ThreadPool pool(2);
  expect_gradients({.loss =
                        [&](Tape<double>& tape) {
                          // Attention is collected for the indexer in passes that train alone.
                          Tape<double> training(pool, Tape<double>::Mode::kTraining);
                          return model.run(tape.is_training() ? tape : training, batch, {.balance_weight = 0}, 2).index;
                        },
                    .inputs = inputs_of(model.parameters(), true),
                    .entries = 6,
                    .tolerance = 1e-6});
}

TEST(TrainingModel, EveryParameterThatThePassReadsHasAGradient) {
  TinyModel<double> model;
  ThreadPool pool(2);
  Tape<double> tape(pool, Tape<double>::Mode::kTraining);
  (void)model.run(tape, batch_of(tiny_samples()), {.balance_weight = 0.5}, 1);
  tape.backward();
  for (const auto& [name, value] : inputs_of(model.parameters(), false)) {
    bool is_zero = true;
    for (size_t row = 0; row < value.rows(); ++row)
      is_zero = is_zero && std::ranges::all_of(value.grad.row(row), [](double x) { return x == 0; });
    EXPECT_FALSE(is_zero) << name;
  }
}

TEST(TrainingModel, ASampleLeaksNothingIntoTheOthers) {
  // Two samples without a common token. When the second changes, the first one's losses, and the gradients that reach
  // its tokens' embeddings, keep every bit.
  std::vector<std::vector<int32_t>> samples(2);
  for (int32_t i = 0; i < 13; ++i)
    samples[0].push_back(10 + (i * 7) % 40);
  for (int32_t i = 0; i < 17; ++i)
    samples[1].push_back(100 + (i * 11) % 50);
  std::vector<std::vector<float>> losses;
  std::vector<std::vector<float>> gradients;
  for (const bool is_changed : {false, true}) {
    if (is_changed) {
      for (int32_t& id : samples[1])
        id += 60;
    }
    TinyModel<float> model;
    ThreadPool pool(2);
    Tape<float> tape(pool, Tape<float>::Mode::kTraining, kernels::GemmPrecision::kBf16);
    const auto result = model.run(tape, batch_of(samples, {3, 0}), {.qat = kFullQat}, 0);
    tape.backward();
    losses.emplace_back(result.rows.begin(), result.rows.begin() + 10);
    gradients.emplace_back();
    const Value<float>& embed = model.parameters().get("embed.weight").value;
    for (size_t id = 10; id < 50; ++id)
      gradients.back().insert(gradients.back().end(), embed.grad.row(id).begin(), embed.grad.row(id).end());
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_NE(gradients[0], std::vector<float>(gradients[0].size()));
}

TEST(TrainingModel, AWindowOfAPassIsThatOfAConfig) {
  ModelConfig narrow = tiny_config();
  narrow.sliding_window = 2;
  const TokenBatch batch = batch_of(tiny_samples());
  ThreadPool pool(1);
  TinyModel<float> wide_model;
  TinyModel<float> narrow_model(narrow);
  const auto losses = [&](TinyModel<float>& model, size_t window) {
    Tape<float> tape(pool, Tape<float>::Mode::kTraining, kernels::GemmPrecision::kFloat32);
    return model.run(tape, batch, {.window = window}, 0).rows;
  };
  EXPECT_EQ(losses(wide_model, 2), losses(narrow_model, 0));
  EXPECT_EQ(losses(wide_model, 0), losses(wide_model, 4));
  EXPECT_NE(losses(wide_model, 2), losses(wide_model, 4));
}

TEST(TrainingModel, IsTheSameForAnyNumberOfThreads) {
  std::vector<std::vector<float>> all;
  for (const size_t threads : {size_t{1}, size_t{3}}) {
    TinyModel<float> model;
    ThreadPool pool(threads);
    Tape<float> tape(pool, Tape<float>::Mode::kTraining, kernels::GemmPrecision::kBf16);
    const auto losses = model.run(tape, batch_of(tiny_samples()), {.qat = kFullQat}, 1);
    tape.backward();
    all.push_back(losses.rows);
    for (const Parameter<float>& parameter : model.parameters().all()) {
      for (size_t row = 0; row < parameter.value.rows(); ++row)
        all.back().insert(all.back().end(), parameter.value.grad.row(row).begin(), parameter.value.grad.row(row).end());
    }
  }
  EXPECT_EQ(all[0], all[1]);
}

TEST(TrainingModel, LoadsAreThoseOfAllRowsOfEachHalf) {
  TinyModel<float> model;
  ThreadPool pool(1);
  Tape<float> tape(pool, Tape<float>::Mode::kForward);
  (void)model.run(tape, batch_of(tiny_samples(), {5, 4}), {}, 0);
  const BiasLoads& loads = model.pass().loads;
  ASSERT_EQ(loads.size(), 6U);
  const auto total = [&](const char* name) {
    const std::vector<int64_t>& counts = loads.find(name)->second;
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  EXPECT_EQ(total("layers.0.ffn.gate.bias"), 23 * 2);
  EXPECT_EQ(total("layers.3.ffn.gate.bias"), (23 - 9) * 2);
}

}  // namespace
}  // namespace tidepool
