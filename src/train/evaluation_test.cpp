#include "train/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"

namespace tidepool {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EvaluationTests, AreChosenByNameOrKindInTheirOwnOrder) {
  const auto names = [](const std::vector<std::string>& wanted) {
    std::vector<std::string> found;
    for (const EvaluationTest& test : choose_evaluation_tests(wanted))
      found.push_back(test.name);
    return found;
  };
  EXPECT_EQ(names({}).size(), evaluation_tests().size());
  EXPECT_THAT(names({"help", "recall"}), ElementsAre("recall_256", "recall_4k", "recall_16k", "recall_64k", "help"));
  EXPECT_THAT(names({"arithmetic_10"}), ElementsAre("arithmetic_10"));
  EXPECT_THROW((void)names({"recal"}), Error);
  EXPECT_THROW((void)names({"arithmetic_1"}), Error);
}

TEST(ReplayCost, QuantilesAreNearestRanks) {
  ReplayCost cost;
  EXPECT_EQ(cost.mean(), 0);
  EXPECT_EQ(cost.quantile(0.99), 0);
  cost.divergences = {4, 1, 3, 2};
  EXPECT_EQ(cost.mean(), 2.5);
  EXPECT_EQ(cost.quantile(0.5), 2);   // rank 2 of 4
  EXPECT_EQ(cost.quantile(0.51), 3);  // rank 2.04, so 3
  EXPECT_EQ(cost.quantile(0.99), 4);
  EXPECT_EQ(cost.quantile(0.01), 1);
}

/// Outputs instead of a model's.
class CountAnswerTest : public ::testing::Test {
 protected:
  CountAnswerTest() {
    dialogue_.answer = text_message(ChatRole::kAssistant, "42");
    dialogue_.group = "sum";
  }
  void count(std::string content, bool has_ended = true) {
    Completion output;
    output.content = std::move(content);
    count_answer(dialogue_, output, has_ended, result_);
  }

  Dialogue dialogue_;
  EvaluationResult result_;
};

TEST_F(CountAnswerTest, RightWrongAndUnendedAnswersAreToldApart) {
  count("42");
  count(" 42\n");
  count("43");
  count("");
  count("42", false);
  EXPECT_EQ(result_.all.items, 5);
  EXPECT_EQ(result_.all.right, 2);
  EXPECT_EQ(result_.well_formed, 3);
  EXPECT_EQ(result_.ended, 4);
  EXPECT_EQ(result_.groups.at("sum").items, 5);
  EXPECT_EQ(result_.groups.at("sum").right, 2);
}

/// On the tiny model with random weights: it knows nothing, but everything runs.
class GoldenEvaluation : public ::testing::Test {
 protected:
  GoldenEvaluation() {
    const std::string line = "The quick brown fox jumps over the lazy dog.\n\n";
    CorpusSource source{"tales", {}, {}};
    for (int i = 0; i < 4; ++i) {
      source.train.push_back({"train", line + std::to_string(i)});
      source.heldout.push_back({"heldout", line + std::to_string(i)});
    }
    corpus_ = Corpus({std::move(source)});
    KvCacheOptions options;
    options.ram_bytes = size_t{64} << 20;
    options.snapshot_ram_bytes = size_t{64} << 20;
    cache_ = std::make_unique<KvCache>(model_->model().kv_layout(), options);
  }

  EvaluationResult run(const EvaluationTest& test, const EvaluationOptions& options) {
    Evaluation evaluation(*model_, *cache_, &corpus_, options);
    return evaluation.run(test);
  }
  static EvaluationTest test_of(const std::string& name) { return choose_evaluation_tests({name}).front(); }

  std::unique_ptr<LoadedModel> model_ =
      LoadedModel::load({.folder = std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "ckpt", .threads = 1});
  Corpus corpus_{{}};
  std::unique_ptr<KvCache> cache_;
};

TEST_F(GoldenEvaluation, AModelThatKnowsNothingGetsNothingRight) {
  const EvaluationResult result = run(test_of("arithmetic_10"), {.items = 3, .wrong_shown = 2});
  EXPECT_FALSE(result.skipped);
  EXPECT_EQ(result.all.items, 3);
  EXPECT_EQ(result.all.right, 0);
  EXPECT_EQ(result.too_long, 0);
  EXPECT_GT(result.prompt_tokens, 3 * 20);
  EXPECT_GT(result.output_tokens, 0);
  ASSERT_EQ(result.wrong.size(), 2);
  EXPECT_FALSE(result.wrong[0].question.empty());
  EXPECT_THAT(result.wrong[0].expected, HasSubstr("</think>"));
}

TEST_F(GoldenEvaluation, PicturesGoThroughTheTower) {
  const EvaluationResult result = run(test_of("pictures"), {.items = 3});
  EXPECT_FALSE(result.skipped);
  EXPECT_EQ(result.all.items, 3);
  EXPECT_EQ(result.too_long, 0);
  EXPECT_GT(result.prompt_tokens, 3 * 8);
  EXPECT_GT(result.output_tokens, 0);
}

TEST(Evaluation, GoldenModelWithoutATowerSkipsPictures) {
  const auto model =
      LoadedModel::load({.folder = std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "ckpt_textonly", .threads = 1});
  KvCacheOptions options;
  options.ram_bytes = size_t{64} << 20;
  options.snapshot_ram_bytes = size_t{64} << 20;
  KvCache cache(model->model().kv_layout(), options);
  Evaluation evaluation(*model, cache, nullptr, {.items = 1});
  EXPECT_THAT(evaluation.run(choose_evaluation_tests({"pictures"}).front()).skipped.value_or(""), HasSubstr("vision"));
}

TEST_F(GoldenEvaluation, TheSameSeedGivesTheSameCounts) {
  const EvaluationOptions options{.items = 3, .seed = 5};
  const EvaluationResult first = run(test_of("help"), options);
  const EvaluationResult second = run(test_of("help"), options);
  EXPECT_EQ(first.prompt_tokens, second.prompt_tokens);
  EXPECT_EQ(first.output_tokens, second.output_tokens);
}

TEST_F(GoldenEvaluation, ItemsThatShareAContextReadItOnce) {
  EvaluationTest test = test_of("recall_4k");
  test.length = 600;
  const EvaluationResult result = run(test, {.items = 4});
  EXPECT_EQ(result.all.items, 4);
  EXPECT_EQ(result.too_long, 0);
  EXPECT_GT(result.prompt_tokens, 4 * 400);
  EXPECT_LE(result.prompt_tokens, 4 * 600);
}

TEST_F(GoldenEvaluation, WhatDoesNotFitTheContextIsSaid) {
  EXPECT_THAT(run(test_of("recall_4k"), {.items = 1}).skipped.value_or(""), HasSubstr("a context of 4096 tokens"));
  // The tools' text alone takes more than half of its 1024 tokens; with a small context nothing fits.
  const EvaluationResult result = run(test_of("tools"), {.items = 2, .context_max = 64});
  EXPECT_EQ(result.too_long, 2);
  EXPECT_EQ(result.all.items, 2);
  EXPECT_EQ(result.output_tokens, 0);
}

TEST_F(GoldenEvaluation, WithoutACorpusItsTestsAreSkipped) {
  Evaluation evaluation(*model_, *cache_, nullptr, {.items = 1});
  EXPECT_THAT(evaluation.run(test_of("text")).skipped.value_or(""), HasSubstr("--corpus"));
  EXPECT_THAT(evaluation.run(test_of("copy")).skipped.value_or(""), HasSubstr("--corpus"));
}

TEST_F(GoldenEvaluation, BitsPerByteAreThoseOfTheTokensOneByOne) {
  const EvaluationResult result = run(test_of("text"), {.items = 4, .chunk = 7});
  ASSERT_TRUE(result.text);
  EXPECT_EQ(result.all.items, 4);
  // The same from the engine's own log-probabilities, each document forced token by token.
  double bits = 0;
  uint64_t bytes = 0;
  Conversation conversation(*model_, *cache_);
  for (const CorpusDocument& document : corpus_.sources()[0].heldout) {
    TurnRequest turn;
    turn.prompt = {0};
    turn.output.kind = OutputFormat::Kind::kIds;
    turn.generation.replay = Replay::kFull;
    turn.generation.sampling.temperature = 0;
    turn.generation.sampling.top_logprobs = 0;
    turn.generation.forced = model_->tokenizer().encode_plain(document.text);
    turn.generation.max_tokens = static_cast<int64_t>(turn.generation.forced.size());
    for (const SampledToken& token : conversation.run(turn).tokens)
      bits -= token.logprobs.value().chosen / std::log(2.0);
    bytes += document.text.size();
  }
  EXPECT_EQ(result.text->bytes, bytes);
  // Logits are binary32 and about 10 large, so a token's bits are known to some 1e-6.
  EXPECT_NEAR(result.text->bits, bits, 1e-5 * static_cast<double>(bytes));
  EXPECT_NEAR(result.text_groups.at("tales").bits_per_byte(), bits / static_cast<double>(bytes), 1e-5);
}

TEST_F(GoldenEvaluation, RightAnswersCostAModelThatKnowsNothingAboutTheVocabulary) {
  const EvaluationResult result = run(test_of("arithmetic_10"), {.items = 3, .measures_answer_bits = true});
  EXPECT_EQ(result.all.right, 0);
  EXPECT_GT(result.answer_tokens, 3);  // three ends, and what stands before them
  EXPECT_LT(result.answer_tokens, result.output_tokens);
  // Random weights make 512 tokens about equally likely: 9 bits.
  EXPECT_NEAR(result.answer_bits / static_cast<double>(result.answer_tokens), 9, 4);
  EXPECT_EQ(run(test_of("arithmetic_10"), {.items = 3}).answer_tokens, 0);
}

TEST_F(GoldenEvaluation, DivergencesOfReplaysAreThoseOfOnePassFromWhereTheyBegin) {
  const EvaluationResult result = run(test_of("replay"), {.items = 4, .chunk = 7});
  ASSERT_TRUE(result.replay);
  ASSERT_EQ(result.replay->divergences.size(), 4);
  EXPECT_EQ(result.all.items, 4);
  // Exact replay is what reading everything gives, bounded replay begins a window of 16 before the end.
  const auto probabilities = [&](const std::vector<InputToken>& tokens, int64_t decoder_from) {
    Arena arena;
    SequenceState state = model_->model().new_sequence();
    const ForwardRequest request{&state, tokens, decoder_from, 1};
    const Span2d<const float> logits = forward(model_->model(), model_->runtime(), arena, {&request, 1});
    std::vector<double> values(logits.row(0).begin(), logits.row(0).end());
    double sum = 0;
    for (double& value : values)
      sum += value = std::exp(value);
    for (double& value : values)
      value /= sum;
    return values;
  };
  double sum = 0;
  for (const CorpusDocument& document : corpus_.sources()[0].heldout) {
    std::vector<InputToken> tokens = {{.id = 0}};
    for (const int32_t id : model_->tokenizer().encode_plain(document.text))
      tokens.push_back({.id = id});
    const std::vector<double> p = probabilities(tokens, 0);
    const std::vector<double> q = probabilities(tokens, static_cast<int64_t>(tokens.size()) - 16);
    for (size_t i = 0; i < p.size(); ++i)
      sum += p[i] * std::log(p[i] / q[i]);
  }
  EXPECT_GT(sum, 1e-4);
  EXPECT_NEAR(result.replay->mean(), sum / 4, 1e-6);
}

TEST_F(GoldenEvaluation, PromptsThatAWindowHoldsAreNotCompared) {
  const EvaluationResult result = run(test_of("replay"), {.items = 4, .context_max = 16});
  EXPECT_EQ(result.skipped, "no held-out text is longer than the model's window, 16 tokens");
}

/// Nothing measured is no perfect score.
TEST_F(GoldenEvaluation, WithoutHeldoutTextsTheirTestsAreSkipped) {
  corpus_ = Corpus({{"tales", corpus_.sources()[0].heldout, {}}});
  EXPECT_EQ(run(test_of("text"), {.items = 4}).skipped, "the corpus has no held-out text");
  EXPECT_TRUE(run(test_of("replay"), {.items = 4}).skipped);
}

}  // namespace
}  // namespace tidepool
