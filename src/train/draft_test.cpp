#include "train/draft.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/arena.h"
#include "model/golden_test_support.h"
#include "train/gradient_check.h"

namespace tidepool {
namespace {

/// Keeps what a draft head reads of the backbone: the mean streams entering each tapped layer.
class TapCollector final : public Probe {
 public:
  bool wants(std::string_view) override { return false; }
  void record(std::string_view name, int64_t layer, int64_t, Span2d<const float> values) override {
    if (name != "main_hidden") return;
    for (size_t row = 0; row < values.rows; ++row)
      taps[layer].insert(taps[layer].end(), values.row(row).begin(), values.row(row).end());
  }
  void record_ints(std::string_view, int64_t, int64_t, std::span<const int64_t>) override {}

  std::map<int64_t, std::vector<float>> taps;
};

/// The golden draft head behind prompt and following tokens, with what the engine's backbone gave it.
class GoldenDraft {
 public:
  explicit GoldenDraft(const golden::Case& c)
      : checkpoint_(Checkpoint::open(golden::folder() / "ckpt")), parameters_(checkpoint_->config()) {
    load_parameters(*checkpoint_, parameters_);
    model_.qat = kFullQat;
    std::vector<InputToken> tokens = c.tokens("prompt_ids");
    first_ = tokens.size() - 1;
    const std::vector<InputToken> follow = c.tokens("follow_ids");
    tokens.insert(tokens.end(), follow.begin(), follow.end());
    batch_.segments = {{.begin = 0, .count = tokens.size()}};
    decoder_ = decoder_rows(batch_);
    collect_taps(tokens);
  }

  DraftOutput<float> run(const golden::Case& c) {
    const auto size = static_cast<size_t>(checkpoint_->config().dspark->block_size);
    DraftBatch blocks;
    const std::vector<int64_t> ids = c.ints("draft_ids");  // [rounds, 1 + block]: the anchor, then drafts
    for (size_t round = 0; round < ids.size() / (size + 1); ++round) {
      blocks.rows.push_back(first_ + round);
      for (size_t i = 0; i < size; ++i)
        blocks.tokens.push_back(static_cast<int32_t>(ids[round * (size + 1) + i]));
    }
    const DraftParameters<float> draft = bind_draft(parameters_, checkpoint_->config());
    return run_draft<float>(tape_, model_, draft, {.decoder = &decoder_, .taps = taps_}, blocks, 0);
  }

 private:
  void collect_taps(const std::vector<InputToken>& tokens) {
    ModelOptions options;
    options.numerics = kHpNumerics;
    options.has_drafts = true;
    const Model model = golden::load_model("ckpt", options);
    Arena arena;
    TapCollector collector;
    SequenceState state = model.new_sequence();
    const ForwardRequest request{.state = &state, .tokens = tokens, .logits_rows = 1};
    (void)forward(model, {pool_, kernels::select_kernels("auto", kernels::LinearInputs::kFloat32)}, arena,
                  {&request, 1}, &collector);
    const auto width = static_cast<size_t>(checkpoint_->config().hidden_size);
    for (const auto& [layer, values] : collector.taps) {
      taps_.push_back(tape_.make_constant(tokens.size(), width));
      std::ranges::copy(values, taps_.back().data.data);
    }
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
  ParameterSet<float> parameters_;
  AttentionModel<float> model_{checkpoint_->config()};
  ThreadPool pool_{2};
  Tape<float> tape_{pool_, Tape<float>::Mode::kForward};
  TokenBatch batch_;
  BatchRows decoder_;
  std::vector<Value<float>> taps_;
  size_t first_ = 0;  ///< the prompt's last position
};

class TrainedDraft : public testing::TestWithParam<const char*> {};

TEST_P(TrainedDraft, GoldenForwardIsTheEnginesWithinTheStatedNoise) {
  const golden::Case c(GetParam());
  GoldenDraft golden_draft(c);
  const DraftOutput<float> output = golden_draft.run(c);
  const size_t rows = output.logits.rows();
  const size_t vocab = output.logits.cols();
  const std::vector<double> errors =
      golden::row_errors(std::span(output.base_logits.data.data, rows * vocab), c.floats("draft_base_logits_hp"), rows);
  // The engine's own bounds for binary32 against binary64: a value that crosses a grid's threshold moves its row by up
  // to 0.6 %.
  EXPECT_LE(golden::quantile(errors, 0.5), 0.002);
  EXPECT_LE(golden::quantile(errors, 1), 0.0075);
  const std::vector<int64_t> stable = c.ints("stable");
  const std::vector<float> confidence = c.floats("confidence_hp");
  const std::vector<float> base = c.floats("draft_base_logits");
  const std::vector<float> biased = c.floats("draft_logits");
  ASSERT_EQ(confidence.size(), rows);
  for (size_t row = 0; row < rows; ++row) {
    if (stable[row / (rows / stable.size())] == 0) continue;
    EXPECT_NEAR(output.confidence.data.at(row, 0), confidence[row], 0.02) << row;
    std::vector<float> bias(vocab);
    std::vector<float> expected(vocab);
    for (size_t i = 0; i < vocab; ++i) {
      bias[i] = output.logits.data.at(row, i) - output.base_logits.data.at(row, i);
      expected[i] = biased[row * vocab + i] - base[row * vocab + i];
    }
    EXPECT_LE(golden::row_errors(bias, expected, 1).front(), 0.0075) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TrainedDraft, testing::Values("dspark_long", "dspark_short"));

/// Two samples, of which the second one's decoder begins late, with tokens 10, 11, ...
TokenBatch make_draft_batch() {
  TokenBatch batch;
  batch.segments = {{.begin = 0, .count = 12}, {.begin = 12, .count = 20, .decoder_begin = 8}};
  for (int32_t i = 0; i < 32; ++i)
    batch.ids.push_back(10 + i);
  batch.weights.assign(32, 1.0F);
  batch.weights[5] = 0;
  return batch;
}

TEST(DraftBlocks, LieWithinTheirSampleBehindRandomPositions) {
  const TokenBatch batch = make_draft_batch();
  const BatchRows decoder = decoder_rows(batch);
  constexpr size_t kSize = 3;
  const DraftBatch all = choose_draft_blocks(batch, decoder, kSize, 1000, 1);
  // Positions p with p + 4 inside: 0 to 7 of the first sample, rows 12 to 19 of the second's 12.
  std::vector<size_t> expected;
  for (size_t row = 0; row < 8; ++row)
    expected.push_back(row);
  for (size_t row = 12; row < 20; ++row)
    expected.push_back(row);
  EXPECT_EQ(all.rows, expected);
  double total = 0;
  for (size_t block = 0; block < all.rows.size(); ++block) {
    const size_t last = all.rows[block];
    const size_t batch_row = last < 12 ? last : last + 8;
    for (size_t i = 0; i < kSize; ++i) {
      const size_t row = block * kSize + i;
      EXPECT_EQ(all.tokens[row], batch.ids[batch_row + 1 + i]);
      EXPECT_EQ(all.targets[row], batch.ids[batch_row + 2 + i]);
      EXPECT_EQ(all.target_rows[row], last + 1 + i);
      total += all.weights[row];
      EXPECT_EQ(all.weights[row] == 0, batch_row + 1 + i == 5);
    }
    if (all.weights[block * kSize] == 0 || all.weights[block * kSize + 1] == 0) continue;
    EXPECT_NEAR(all.weights[block * kSize + 1] / all.weights[block * kSize], std::exp(-0.25), 1e-12);
  }
  EXPECT_NEAR(total, 1, 1e-12);

  const DraftBatch some = choose_draft_blocks(batch, decoder, kSize, 4, 1);
  EXPECT_EQ(some.rows.size(), 4U);
  EXPECT_EQ(choose_draft_blocks(batch, decoder, kSize, 4, 1).rows, some.rows);
  EXPECT_NE(choose_draft_blocks(batch, decoder, kSize, 4, 2).rows, some.rows);
}

/// The golden checkpoint's layers, smaller.
ModelConfig small_draft_config() {
  ModelConfig config = Checkpoint::open(golden::folder() / "ckpt")->config();
  config.vocab_size = 45;
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.head_dim = 32;
  config.q_lora_rank = 32;
  config.o_lora_rank = 16;
  config.moe_intermediate_size = 32;
  config.dspark->noise_token_id = 5;
  return config;
}

/// A draft head with random weights behind random taps.
struct SmallDraft {
  ModelConfig config = small_draft_config();
  ParameterSet<double> parameters{config};
  AttentionModel<double> model{config};
  TokenBatch batch = make_draft_batch();
  BatchRows decoder = decoder_rows(batch);
  DraftBatch blocks = choose_draft_blocks(batch, decoder, 3, 4, 5);
  TestRandom random{6};
  Leaf<double> tap{random, decoder.rows, static_cast<size_t>(config.hidden_size)};
  Leaf<double> hidden{random, decoder.rows, static_cast<size_t>(config.hidden_size)};

  SmallDraft() {
    for (Parameter<double>& parameter : parameters.all()) {
      const bool is_norm = parameter.name.ends_with("norm.weight");
      const double scale = is_norm ? 0.3 : 2 / std::sqrt(static_cast<double>(parameter.value.cols()));
      for (size_t i = 0; i < parameter.value.rows() * parameter.value.cols(); ++i)
        parameter.value.data.data[i] = (is_norm ? 1 : 0) + scale * random.value();
    }
  }
  DraftLoss run(Tape<double>& tape) {
    const DraftParameters<double> draft = bind_draft(parameters, config);
    const DraftOutput<double> output = run_draft<double>(tape, model, draft, {&decoder, {tap, tap, tap}}, blocks, 0);
    return draft_losses<double>(tape, model, draft, hidden, blocks, output);
  }
};

TEST(DraftBlocks, GradientsAreThoseOfFiniteDifferences) {
  SmallDraft small;
  // Without the confidence's part, whose target gets no gradient; its own tensors follow below.
  GradientCheck check{.loss =
                          [&](Tape<double>& tape) {
                            const DraftLoss loss = small.run(tape);
                            return 0.1 * loss.cross_entropy + 0.9 * loss.distance;
                          },
                      .entries = 3,
                      .step = 1e-6,
                      .tolerance = 1e-6};
  // The confidence reads the hidden rows too: without it, nothing of its gradient reaches them.
  Value<double> confidence = small.parameters.get("mtp.2.confidence_head.proj.weight").value;
  for (size_t i = 0; i < confidence.cols(); ++i)
    confidence.data.data[i] = 0;
  for (const char* name : {"mtp.0.main_proj.weight", "mtp.0.main_norm.weight", "mtp.0.attn.wkv.weight",
                           "mtp.1.attn.wq_b.weight", "mtp.1.attn.attn_sink", "mtp.1.hc_attn_fn", "mtp.2.hc_ffn_scale",
                           "mtp.2.ffn.shared_experts.w2.weight", "mtp.2.norm.weight", "mtp.2.markov_head.head.weight"})
    check.inputs.emplace_back(name, small.parameters.get(name).value);
  expect_gradients(check);
}

/// Any loss of logits and confidences: every tensor of the head, the ways of the confidence into the hidden rows and
/// into the Markov head's embedding among them. Selection biases have no gradient.
TEST(DraftBlocks, EveryTensorsGradientIsThatOfFiniteDifferences) {
  SmallDraft small;
  const DraftParameters<double> draft = bind_draft(small.parameters, small.config);
  GradientCheck check{.run =
                          [&](Tape<double>& tape) {
                            const DraftOutput<double> output =
                                run_draft<double>(tape, small.model, draft,
                                                  {&small.decoder, {small.tap, small.tap, small.tap}}, small.blocks, 0);
                            return std::vector{output.logits, output.confidence};
                          },
                      .entries = 2,
                      .step = 1e-6,
                      .tolerance = 1e-6};
  for (const Parameter<double>& parameter : small.parameters.all()) {
    if (!parameter.name.starts_with("mtp.") || parameter.rule == UpdateRule::kBalance) continue;
    check.inputs.emplace_back(parameter.name, parameter.value);
  }
  EXPECT_GT(check.inputs.size(), 60U);
  expect_gradients(check);
  for (const auto& [name, value] : check.inputs) {
    if (name.find(".experts.") != std::string::npos) continue;  // one that no row chose has none
    const std::span<const double> gradients(value.grad.data, value.rows() * value.cols());
    EXPECT_TRUE(std::ranges::any_of(gradients, [](double gradient) { return gradient != 0; })) << name;
  }
}

TEST(DraftBlocks, ConfidenceLearnsByItsOwnPart) {
  SmallDraft small;
  GradientCheck check{.loss = [&](Tape<double>& tape) { return small.run(tape).total; }, .entries = 10};
  const char* name = "mtp.2.confidence_head.proj.weight";
  check.inputs.emplace_back(name, small.parameters.get(name).value);
  expect_gradients(check);
}

TEST(DraftBlocks, TheBackboneGetsNoGradient) {
  SmallDraft small;
  ThreadPool pool(2);
  Tape<double> tape(pool, Tape<double>::Mode::kTraining);
  (void)small.run(tape);
  tape.backward();
  for (const Parameter<double>& parameter : small.parameters.all()) {
    if (parameter.name.starts_with("mtp.")) continue;
    for (size_t i = 0; i < parameter.value.rows() * parameter.value.cols(); ++i)
      ASSERT_EQ(parameter.value.grad.data[i], 0) << parameter.name;
  }
  for (const std::vector<double>* gradients : {&small.tap.grad(), &small.hidden.grad()}) {
    for (const double gradient : *gradients)
      ASSERT_EQ(gradient, 0);
  }
}

}  // namespace
}  // namespace tidepool
