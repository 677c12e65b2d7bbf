#include "train/mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "train/bpe_trainer.h"

namespace tidepool {
namespace {

using ::testing::HasSubstr;

class MixtureTest : public ::testing::Test {
 protected:
  MixtureTest() {
    for (int i = 0; i < 30; ++i) {
      large_.train.push_back({"large", "A tale of some length, told at large " + std::to_string(i)});
      if (i % 3 == 0) small_.train.push_back({"small", "A small tale of length, told at large" + std::to_string(i)});
    }
    stage_.name = "first";
    stage_.tokens = 1000;
    stage_.step_rows = stage_.batch_rows = 512;
  }

  Recipe recipe() {
    Recipe recipe;
    recipe.name = "test";
    recipe.seed = 1;
    recipe.stages = {stage_, stage_};
    recipe.stages[1].name = "second";
    return recipe;
  }
  Mixture make(size_t stage = 0) { return {recipe(), stage, tokenizer_, &corpus(), pool_}; }
  const Corpus& corpus() {
    corpus_ = Corpus({large_, small_});
    return corpus_;
  }

  ThreadPool pool_{1};
  Tokenizer tokenizer_ = Tokenizer::parse(write_tokenizer_json(train_bpe({}, {.token_count = 256})), "bytes");
  CorpusSource large_{"large", {}, {}};
  CorpusSource small_{"small", {}, {}};
  Corpus corpus_{{}};
  RecipeStage stage_;
};

TEST_F(MixtureTest, AllTextsComeByTheirSize) {
  stage_.mixture = {{.texts = "all", .task = "", .length_max = 512}};
  Mixture mixture = make();
  (void)mixture.packer().next();
  const std::vector<SamplePacker::PartPosition> parts = mixture.packer().position().parts;
  EXPECT_EQ(parts.size(), 2);
  size_t large = 0;
  size_t small = 0;
  for (int i = 0; i < 63; ++i) {
    const TokenBatch batch = mixture.packer().next();
    for (const TokenBatch::Segment& segment : batch.segments) {
      const std::string text = tokenizer_.decode(std::span(batch.ids).subspan(segment.begin, segment.count));
      (text.find("A small tale") != std::string::npos ? small : large) += segment.count;
    }
  }
  EXPECT_NEAR(static_cast<double>(large) / static_cast<double>(small), 3, 0.2);  // 30 documents and 10
}

TEST_F(MixtureTest, StagesOfTheSameMixtureSeeOtherItems) {
  stage_.mixture = {{.texts = "", .task = "help", .length_min = 64, .length_max = 512}};
  Mixture first = make(0);
  Mixture second = make(1);
  Mixture again = make(0);
  const TokenBatch batch = first.packer().next();
  EXPECT_NE(batch.ids, second.packer().next().ids);
  EXPECT_EQ(batch.ids, again.packer().next().ids);
}

TEST_F(MixtureTest, ASourceThatIsNotThereIsNamed) {
  stage_.mixture = {{.texts = "songs", .task = "", .length_max = 512}};
  try {
    (void)make();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("stage first, mixture[0]: the corpus has no source \"songs\"; it has: large, small"));
  }
  EXPECT_THROW(Mixture(recipe(), 0, tokenizer_, nullptr, pool_), Error);
}

TEST_F(MixtureTest, ACorpusWithoutTextIsSaidBeforeTheRun) {
  small_.train = {{"empty", ""}};
  stage_.mixture = {{.texts = "small", .task = "", .length_max = 512}};
  const auto refusal = [&]() -> std::string {
    try {
      check_mixture(recipe(), 1, tokenizer_, &corpus());
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_THAT(refusal(), HasSubstr("stage second, mixture[0]: the corpus' source \"small\" has no text to train on"));
  large_.train.clear();
  stage_.mixture[0].texts = "all";
  EXPECT_THAT(refusal(), HasSubstr("stage second, mixture[0]: the corpus has no text to train on"));
}

/// Its dialogues have no length that a recipe could ask for.
TEST_F(MixtureTest, ADialogueLongerThanABatchIsNamedWithItsTask) {
  stage_.batch_rows = 80;
  stage_.mixture = {{.texts = "all", .task = "", .length_max = 80},
                    {.texts = "", .task = "help", .length_min = 80, .length_max = 80}};
  Mixture mixture = make();
  try {
    (void)mixture.packer().next();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("recipe test, stage first, mixture[1]: task help: sample "));
    EXPECT_THAT(error.what(), HasSubstr("the stage's batch_rows is 80; samples are not cut, so give the stage"));
  }
}

TEST_F(MixtureTest, PicturesNeedAModelThatSees) {
  stage_.mixture = {{.texts = "", .task = "pictures", .length_min = 64, .length_max = 512}};
  EXPECT_THROW((void)make(), Error);
  const ImagePlanConfig images{.patch = 14, .downsample = 3, .tokens_max = 8, .pixels_min = int64_t{84} * 84};
  Mixture mixture(recipe(), 0, {tokenizer_, images}, nullptr, pool_);
  const TokenBatch batch = mixture.packer().next();
  EXPECT_EQ(batch.pictures.size(), batch.segments.size());
}

TEST_F(MixtureTest, APositionComesBackFromItsCounters) {
  stage_.mixture = {{.texts = "all", .task = "", .length_max = 512},
                    {.texts = "", .task = "help", .length_min = 64, .length_max = 512}};
  Mixture mixture = make();
  for (int i = 0; i < 70; ++i)
    (void)mixture.packer().next();
  auto counters = position_counters(mixture.packer().position());
  EXPECT_EQ(counters_position(counters), mixture.packer().position());
  counters.pop_back();
  EXPECT_THROW((void)counters_position(counters), Error);
}

}  // namespace
}  // namespace tidepool
