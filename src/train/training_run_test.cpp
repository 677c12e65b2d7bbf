#include "train/training_run.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "base/temp_folder.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "text/tokenizer_control.h"
#include "train/bpe_trainer.h"

namespace tidepool {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kGoldenModel = TIDEPOOL_GOLDEN_DIR "/ckpt";

/// Four steps of the backbone and two of the draft head, of the golden model's shape.
constexpr const char* kTinyRecipe = R"({
 "format": 1, "name": "tiny", "seed": 3,
 "stages": [
  {"name": "first", "tokens": 2048, "step_rows": 512, "batch_rows": 256,
   "rate": {"peak": 0.01, "last": 0.001, "warm_up": 0.25, "flat": 0.5, "cosine": 1},
   "mixture": [{"texts": "all", "weight": 1, "length": 200}]},
  {"name": "drafts", "tokens": 512, "step_rows": 256, "batch_rows": 256, "rounding": "all", "trains": "drafts",
   "rate": {"peak": 0.01, "last": 0.001, "warm_up": 0, "flat": 0.5, "cosine": 1},
   "mixture": [{"texts": "all", "weight": 1, "length": 200}]}
 ]})";

/// Sentences that a little model learns something of in a few steps.
Corpus sentence_corpus() {
  CorpusSource source{"sentences", {}, {}};
  source.train.reserve(40);
  for (int document = 0; document < 40; ++document) {
    std::string text;
    for (int sentence = 0; sentence < 10 + document; ++sentence)
      text += fmt::format("The number {} stands behind {}. ", (document + sentence) % 10, sentence % 7);
    source.train.push_back({fmt::format("{}", document), text});
  }
  return Corpus({source});
}

std::string bytes_of(const std::filesystem::path& file) {
  return read_file(file, uint64_t{1} << 30U);
}

/// Time that stands still, so that two runs log the same.
std::chrono::steady_clock::time_point no_time() {
  return {};
}

class TrainingRunTest : public testing::Test {
 protected:
  [[nodiscard]] TrainingInputs inputs() const {
    return {recipe_, config_, tokenizer_, bytes_of(std::string(kGoldenModel) + "/tokenizer.json"), &corpus_, "digest"};
  }
  [[nodiscard]] static TrainingRunOptions options(const std::filesystem::path& folder) {
    return {.folder = folder,
            .precision = kernels::GemmPrecision::kFloat32,
            .save_interval = std::chrono::hours(1),
            .clock = &no_time};
  }
  /// Runs until `steps` steps are done in this start; 0 for the end.
  bool run(const std::filesystem::path& folder, size_t threads, uint64_t steps = 0) {
    ThreadPool pool(threads);
    TrainingRun training(inputs(), options(folder), pool);
    std::stop_source stop;
    uint64_t done = 0;
    return training.run(stop.get_token(), [&](const TrainingProgress& progress) {
      losses_.push_back(progress.step.loss);
      gradient_norms_.push_back(progress.step.gradient_norm);
      if (++done == steps) stop.request_stop();
    });
  }

  Recipe recipe_ = parse_recipe(kTinyRecipe, "recipe");
  ModelConfig config_ = load_config(std::filesystem::path(kGoldenModel) / "config.json");
  Tokenizer tokenizer_ = Tokenizer::load(std::filesystem::path(kGoldenModel) / "tokenizer.json");
  Corpus corpus_ = sentence_corpus();
  std::vector<double> losses_;
  std::vector<double> gradient_norms_;
};

/// Under sanitizers these take minutes.
class SlowTrainingRunTest : public TrainingRunTest {};

TEST_F(SlowTrainingRunTest, StoppedAndStartedAgainItEndsWithTheSameBits) {
  const TempFolder whole;
  const TempFolder parts;
  EXPECT_TRUE(run(whole.path(), 2));
  EXPECT_FALSE(run(parts.path(), 1, 1));  // in the middle of a stage
  EXPECT_FALSE(run(parts.path(), 2, 3));  // between two stages
  EXPECT_FALSE(run(parts.path(), 1, 1));
  EXPECT_TRUE(run(parts.path(), 1));
  for (const char* file : {"state.safetensors", "log.jsonl", "model/model.safetensors.index.json", "loss.svg"})
    EXPECT_EQ(bytes_of(whole / file), bytes_of(parts / file)) << file;
}

TEST_F(SlowTrainingRunTest, AModelThatWasRemovedBehindTheEndIsWrittenAgain) {
  recipe_.stages.resize(1);
  recipe_.stages[0].tokens = 512;
  const TempFolder folder;
  EXPECT_TRUE(run(folder.path(), 2));
  const char* shard = "model/model-00001-of-00001.safetensors";
  const std::string before = bytes_of(folder / shard);
  std::filesystem::remove_all(folder / "model");
  losses_.clear();
  EXPECT_TRUE(run(folder.path(), 2));
  EXPECT_TRUE(losses_.empty());
  EXPECT_EQ(bytes_of(folder / shard), before);
}

/// What kill -9 leaves: an older state, and a log that is further.
TEST_F(SlowTrainingRunTest, ItGoesOnFromAnOlderStateBehindALogThatIsFurther) {
  const TempFolder whole;
  const TempFolder killed;
  EXPECT_FALSE(run(killed.path(), 1, 2));
  const std::string older = bytes_of(killed / "state.safetensors");
  EXPECT_FALSE(run(killed.path(), 1, 1));
  std::ofstream(killed / "state.safetensors", std::ios::binary) << older;
  EXPECT_TRUE(run(killed.path(), 1));
  EXPECT_TRUE(run(whole.path(), 1));
  for (const char* file : {"state.safetensors", "log.jsonl"})
    EXPECT_EQ(bytes_of(whole / file), bytes_of(killed / file)) << file;
}

TEST_F(SlowTrainingRunTest, TheLossFallsAndTheModelIsOneThatTheEngineReads) {
  recipe_.stages.resize(1);
  recipe_.stages[0].tokens = int64_t{512} * 12;
  const TempFolder folder;
  EXPECT_TRUE(run(folder.path(), 2));
  ASSERT_EQ(losses_.size(), 12U);
  EXPECT_NEAR(losses_.front(), std::log(512), 0.3);  // all tokens equally likely at first
  EXPECT_LT(losses_.back(), losses_.front() - 1);
  EXPECT_EQ(Checkpoint::open(folder / "model")->config().vocab_size, 512);
}

TEST_F(TrainingRunTest, AnotherRecipeIsRefusedInTheSameFolder) {
  const TempFolder folder;
  EXPECT_FALSE(run(folder.path(), 1, 1));
  TrainingInputs other = inputs();
  other.digest = "another";
  ThreadPool pool(1);
  EXPECT_THROW(TrainingRun(other, options(folder.path()), pool), Error);
}

TEST_F(TrainingRunTest, ASecondRunInTheSameFolderIsRefusedWhileTheFirstLives) {
  const TempFolder folder;
  ThreadPool pool(1);
  const TrainingRun first(inputs(), options(folder.path()), pool);
  try {
    const TrainingRun second(inputs(), options(folder.path()), pool);
    FAIL() << "two runs write one folder";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(error.what(), HasSubstr("--out"));
  }
}

TEST_F(TrainingRunTest, WhatALaterStageCannotHaveIsRefusedAtOnce) {
  const TempFolder folder;
  const auto refusal = [&]() -> std::string {
    try {
      (void)run(folder.path(), 1, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "nothing was refused";
  };
  recipe_.stages[1].sliding_window = static_cast<size_t>(config_.sliding_window) + 1;
  EXPECT_THAT(refusal(), HasSubstr("stage drafts has a sliding_window of 17, and the config one of 16"));
  recipe_.stages[1].sliding_window = 0;
  recipe_.stages[1].mixture[0].texts = "tales";
  EXPECT_THAT(refusal(), HasSubstr("recipe tiny, stage drafts, mixture[0]: "));
  recipe_.stages[1].mixture = {{.texts = "", .task = "copy", .length_min = 48, .length_max = 128}};
  EXPECT_THAT(refusal(),
              HasSubstr("recipe tiny, stage drafts, mixture[0]: task copy: lengths 48 to 128; they must be 64"));
  // The golden model is made for 1,024 positions.
  recipe_.stages[1].batch_rows = recipe_.stages[1].step_rows = 2048;
  recipe_.stages[1].mixture = {{.texts = "all", .task = "", .length_min = 2048, .length_max = 2048}};
  EXPECT_THAT(refusal(), HasSubstr("recipe tiny, stage drafts, mixture[0] has samples of up to 2048 tokens"));
  recipe_.stages[1].mixture = {{.texts = "", .task = "recall", .length_min = 64, .length_max = 1025}};
  EXPECT_THAT(refusal(), HasSubstr("max_position_embeddings is 1024: give it a length of 1024 at most"));
  EXPECT_TRUE(losses_.empty());
}

/// The golden vocabulary has what plain dialogues need, and no system prompt.
TEST_F(TrainingRunTest, ATokenizerWithoutTheTokensOfALaterTaskIsRefusedAtOnce) {
  recipe_.stages[1].mixture = {{.texts = "", .task = "tools", .length_min = 64, .length_max = 256}};
  const TempFolder folder;
  try {
    (void)run(folder.path(), 1, 1);
    FAIL() << "a run was begun without control tokens";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("stage drafts, mixture[0]: task tools: "));
    EXPECT_THAT(error.what(), HasSubstr("there is no added token \"<｜System｜>\""));
  }
  EXPECT_TRUE(losses_.empty());
}

TEST_F(TrainingRunTest, ALossThatIsNoNumberEndsTheRunAndSaysHowAnotherIsBegun) {
  recipe_.stages[0].rate = {.peak = 1e30, .last = 1e30};
  const TempFolder folder;
  try {
    (void)run(folder.path(), 2);
    FAIL() << "a run went on at a rate of 1e30";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNumeric);
    EXPECT_THAT(error.what(), HasSubstr(" of stage first the loss is "));
    EXPECT_THAT(error.what(), HasSubstr("a lower rate, a longer warm_up or a clip_norm: that is another recipe"));
    EXPECT_THAT(error.what(), HasSubstr("another folder (--out)"));
  }
}

/// With a rate of 0 nothing but selection biases moves, so the two batches of a step are those of two steps.
TEST_F(SlowTrainingRunTest, TheGradientOfDraftsIsThatOfTheMeanOverItsBatches) {
  recipe_.stages.erase(recipe_.stages.begin());
  recipe_.stages[0].rate = {};
  recipe_.stages[0].tokens = 2048;
  const TempFolder two_steps;
  const TempFolder one_step;
  EXPECT_FALSE(run(two_steps.path(), 2, 2));
  recipe_.stages[0].step_rows = 512;
  EXPECT_FALSE(run(one_step.path(), 2, 1));
  ASSERT_EQ(gradient_norms_.size(), 3U);
  EXPECT_NEAR(losses_[2], (losses_[0] + losses_[1]) / 2, 0.01);
  // The mean of two gradients is not longer than their mean length; their sum is, unless they point apart. A percent
  // is for the biases.
  EXPECT_LT(gradient_norms_[2], 1.01 * (gradient_norms_[0] + gradient_norms_[1]) / 2);
}

/// The momentum of `name` behind one step.
std::vector<float> first_momentum(const std::filesystem::path& folder, const std::string& name) {
  const SafetensorsFile state(folder / "state.safetensors");
  const TensorView momentum = state.tensor(name + ".momentum");
  std::vector<float> values(momentum.bytes / sizeof(float));
  std::memcpy(values.data(), momentum.data, momentum.bytes);
  return values;
}

TEST_F(SlowTrainingRunTest, AStageClipsItsGradients) {
  const TempFolder plain;
  const TempFolder clipped;
  EXPECT_FALSE(run(plain.path(), 2, 1));
  recipe_.stages[0].clip_norm = gradient_norms_[0] / 2;
  EXPECT_FALSE(run(clipped.path(), 2, 1));
  EXPECT_EQ(gradient_norms_[0], gradient_norms_[1]);  // what is logged is the norm before
  std::vector<float> expected = first_momentum(plain.path(), "layers.0.attn.wkv.weight");
  for (float& value : expected)
    value /= 2;
  EXPECT_EQ(first_momentum(clipped.path(), "layers.0.attn.wkv.weight"), expected);
}

TEST_F(TrainingRunTest, AVocabularyThatDoesNotFitIsNamed) {
  config_.vocab_size = 511;
  const TempFolder folder;
  ThreadPool pool(1);
  try {
    const TrainingRun training(inputs(), options(folder.path()), pool);
    FAIL() << "a vocabulary of another size was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the tokenizer has 512 tokens and the config's vocab_size is 511"));
  }
}

/// A stage of texts, then one of pictures.
constexpr const char* kSeeingRecipe = R"({
 "format": 1, "name": "seeing", "seed": 3,
 "stages": [
  {"name": "texts", "tokens": 512, "step_rows": 256, "batch_rows": 256,
   "rate": {"peak": 0.01, "last": 0.001, "warm_up": 0, "flat": 0.5, "cosine": 1},
   "mixture": [{"texts": "all", "weight": 1, "length": 200}]},
  {"name": "pictures", "tokens": 1024, "step_rows": 1024, "batch_rows": 1024,
   "rate": {"peak": 0.01, "last": 0.001, "warm_up": 0, "flat": 0.5, "cosine": 1},
   "mixture": [{"task": "pictures", "weight": 1}]}
 ]})";

class SlowSeeingRunTest : public TrainingRunTest {
 protected:
  SlowSeeingRunTest() {
    recipe_ = parse_recipe(kSeeingRecipe, "recipe");
    tokenizer_ = Tokenizer::parse(write_tokenizer_json(train_bpe({}, {.token_count = 256})), "bytes");
    config_.vocab_size = static_cast<int64_t>(tokenizer_.vocabulary_size());
    config_.image_token_id = find_control_tokens(tokenizer_).image;
    config_.engram.reset();  // of another vocabulary
    config_.dspark.reset();
  }
  /// One step further, and what the vision tower then is.
  std::string step(const std::filesystem::path& folder) {
    run(folder, 1, 1);
    const SafetensorsFile state(folder / "state.safetensors");
    const TensorView weight = state.tensor("aligner.w1.weight");
    return {reinterpret_cast<const char*>(weight.data), weight.bytes};
  }
};

TEST_F(SlowSeeingRunTest, TheTowerIsTrainedWhereThereArePictures) {
  const TempFolder folder;
  const std::string first = step(folder.path());
  const std::string second = step(folder.path());
  EXPECT_TRUE(first == second);
  EXPECT_FALSE(second == step(folder.path()));
}

TEST_F(SlowSeeingRunTest, APlaceholderOfAnotherTokenizerIsRefused) {
  const int64_t placeholder = *config_.image_token_id;
  config_.image_token_id = 7;
  const TempFolder folder;
  ThreadPool pool(1);
  try {
    const TrainingRun training(inputs(), options(folder.path()), pool);
    FAIL() << "a placeholder that the tokenizer does not have was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("set it to " + std::to_string(placeholder)));
  }
}

/// Rows 0..9 are given but for the last two, whose predictions are learnt: rows 7 and 8 predict them. With a window of
/// 4 the decoder reads rows 4..7 of the prompt.
TEST(SkipPrompts, LeavesTheLastWindowOfThePromptToTheDecoder) {
  TokenBatch batch;
  batch.ids.assign(10, 1);
  batch.targets.assign(10, 1);
  batch.weights.assign(10, 0);
  batch.weights[7] = 1;
  batch.weights[8] = 1;
  batch.segments = {{0, 10, 0}};
  skip_prompts(batch, 4);
  EXPECT_EQ(batch.segments[0].decoder_begin, 4U);
  skip_prompts(batch, 128);
  EXPECT_EQ(batch.segments[0].decoder_begin, 0U);
}

}  // namespace
}  // namespace tidepool
