#include "train/recipe.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tidepool {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kRecipe = R"({
  "format": 1, "name": "small", "seed": 7,
  "stages": [
    {"name": "first", "tokens": 100000, "step_rows": 1024, "batch_rows": 512,
     "rate": {"peak": 0.01, "last": 0.001, "warm_up": 0.1, "flat": 0.5, "cosine": 0.9},
     "mixture": [{"texts": "all", "weight": 3}, {"task": "recall", "weight": 1, "length": [128, 512]}]},
    {"name": "second", "tokens": 1, "step_rows": 512, "batch_rows": 512, "rounding": ["entries", "window"],
     "trains": "drafts", "exploration": 0.5,
     "rate": {"peak": 0.01, "last": 0.01, "warm_up": 0, "flat": 1, "cosine": 1},
     "mixture": [{"task": "help", "weight": 0.5, "loss_weight": 8},
                 {"texts": "tales", "weight": 1, "length": 256}]}]})";

std::string with(std::string_view part, std::string_view other) {
  std::string text(kRecipe);
  const size_t place = text.find(part);
  EXPECT_NE(place, std::string::npos) << part;
  return text.replace(place, part.size(), other);
}

std::string refusal(const std::string& json) {
  try {
    (void)parse_recipe(json, "r.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "nothing was refused";
}

TEST(Recipe, SaysWhatItsFileSays) {
  const Recipe recipe = parse_recipe(kRecipe, "r.json");
  EXPECT_EQ(recipe.name, "small");
  EXPECT_EQ(recipe.seed, 7);
  EXPECT_EQ(recipe.config, "config.json");
  ASSERT_EQ(recipe.stages.size(), 2);
  const RecipeStage& first = recipe.stages[0];
  EXPECT_EQ(first.steps(), 98);  // 100000 / 1024 = 97.7
  EXPECT_FALSE(first.rounding.entries);
  EXPECT_EQ(first.trains, RecipeStage::Trains::kModel);
  EXPECT_EQ(first.optimizer, MatrixOptimizer::kMuon);
  EXPECT_EQ(first.replay, RecipeStage::Replay::kBounded);
  ASSERT_EQ(first.mixture.size(), 2);
  EXPECT_EQ(first.mixture[0].texts, "all");
  EXPECT_EQ(first.mixture[0].length_max, 512);  // a batch, when nothing is said
  EXPECT_EQ(first.mixture[1].task, "recall");
  EXPECT_EQ(first.mixture[1].length_min, 128);
  const RecipeStage& second = recipe.stages[1];
  EXPECT_EQ(second.steps(), 1);
  EXPECT_TRUE(second.rounding.entries);
  EXPECT_TRUE(second.rounding.window);
  EXPECT_FALSE(second.rounding.weights);
  EXPECT_EQ(first.exploration, 0.25);
  EXPECT_EQ(second.exploration, 0.5);
  EXPECT_EQ(first.mixture[1].loss_weight, 1);
  EXPECT_EQ(second.mixture[0].loss_weight, 8);
  EXPECT_EQ(second.trains, RecipeStage::Trains::kDrafts);
  EXPECT_EQ(second.mixture[1].length_min, 256);
}

TEST(Recipe, SharesOfAStageBecomeSteps) {
  const LearningRateSchedule schedule = parse_recipe(kRecipe, "r.json").stages[0].schedule();
  EXPECT_EQ(schedule.warm_up_end, 10);  // 9.8
  EXPECT_EQ(schedule.flat_end, 49);
  EXPECT_EQ(schedule.cosine_end, 88);  // 88.2
  EXPECT_EQ(schedule.peak, 0.01);
  EXPECT_EQ(schedule.last, 0.001);
}

TEST(Recipe, RoundingMayBeNamedAtOnce) {
  EXPECT_TRUE(parse_recipe(with("[\"entries\", \"window\"]", "\"all\""), "r.json").stages[1].rounding.experts);
  EXPECT_FALSE(parse_recipe(with("[\"entries\", \"window\"]", "\"none\""), "r.json").stages[1].rounding.entries);
}

TEST(Recipe, AStageMayClipItsGradients) {
  EXPECT_EQ(parse_recipe(kRecipe, "r.json").stages[0].clip_norm, 0);
  const auto clipped = [](const char* norm) {
    return with("\"batch_rows\": 512,", fmt::format("\"batch_rows\": 512, \"clip_norm\": {},", norm));
  };
  EXPECT_EQ(parse_recipe(clipped("0.5"), "r.json").stages[0].clip_norm, 0.5);
  EXPECT_EQ(parse_recipe(clipped("0"), "r.json").stages[0].clip_norm, 0);
  EXPECT_THAT(refusal(clipped("-1")), HasSubstr("stages[0].clip_norm is -1; it must be a number from 0 to"));
  EXPECT_THAT(refusal(clipped("true")), HasSubstr("stages[0].clip_norm is true; it must be a number from 0 to"));
}

TEST(Recipe, AStageNamesAnotherOptimiserReplayOrWindow) {
  const RecipeStage stage =
      parse_recipe(with("\"batch_rows\": 512,",
                        R"("batch_rows": 512, "optimizer": "adamw", "replay": "full", "sliding_window": 8,)"),
                   "r.json")
          .stages[0];
  EXPECT_EQ(stage.sliding_window, 8);
  EXPECT_EQ(stage.optimizer, MatrixOptimizer::kAdamW);
  EXPECT_EQ(stage.replay, RecipeStage::Replay::kFull);
}

TEST(Recipe, WhatIsWrongIsNamedWithItsPlace) {
  EXPECT_THAT(refusal("{"), HasSubstr("r.json: "));
  EXPECT_THAT(refusal("[]"), HasSubstr("r.json: a recipe is a JSON object"));
  EXPECT_THAT(refusal(with("\"format\": 1", "\"format\": 2")),
              HasSubstr("format is 2; it must be an integer from 1 to 1"));
  EXPECT_THAT(refusal(with("\"seed\": 7,", "")), HasSubstr("there is no \"seed\" in the recipe"));
  EXPECT_THAT(refusal(with("\"peak\": 0.01, \"last\": 0.001", "\"peak\": 0.01")),
              HasSubstr("there is no \"last\" in stages[0].rate"));
  EXPECT_THAT(refusal(with("\"weight\": 3", "\"weight\": -3")),
              HasSubstr("stages[0].mixture[0].weight is -3; it must be"));
  EXPECT_THAT(refusal(with("\"weight\": 3", "\"weigth\": 3")),
              HasSubstr("\"weigth\" is no key of stages[0].mixture[0]; there are: texts, task, weight, loss_weight"));
  EXPECT_THAT(refusal(with("\"recall\"", "\"recal\"")),
              HasSubstr("stages[0].mixture[1].task is \"recal\"; it must be one of"));
  EXPECT_THAT(refusal(with("\"task\": \"recall\"", "\"task\": \"recall\", \"texts\": \"all\"")),
              HasSubstr("either \"texts\" or \"task\""));
  EXPECT_THAT(refusal(with("\"task\": \"recall\"", "\"task\": \"recall\", \"word_dropout\": 0.1")),
              HasSubstr("mixture[1].word_dropout is 0.1; it must be left out: it is for the task help alone"));
  EXPECT_THAT(refusal(with("\"task\": \"help\"", "\"task\": \"help\", \"words\": 24")),
              HasSubstr("words is 24; it must be left out: it is for the task recall alone"));
  EXPECT_THAT(refusal(with("\"task\": \"recall\"", "\"task\": \"recall\", \"words\": 15")),
              HasSubstr("mixture[1].words is 15; it must be an integer from 16 to"));
  EXPECT_THAT(refusal(with("\"task\": \"help\"", "\"task\": \"help\", \"word_dropout\": 1")),
              HasSubstr("word_dropout is 1; it must be a number from 0 to 0.9"));
  EXPECT_THAT(refusal(with("[128, 512]", "[128, 513]")), HasSubstr("stages[0].mixture[1].length[1] is 513"));
  EXPECT_THAT(refusal(with("\"task\": \"help\"", "\"task\": \"help\", \"length\": 256")),
              HasSubstr("stages[1].mixture[0].length is 256; it must be left out: it is for texts, recall, needle"));
  EXPECT_THAT(refusal(with("\"length\": 256", "\"length\": [128, 256]")),
              HasSubstr("stages[1].mixture[1].length is [128, 256]; it must be a number of tokens"));
  EXPECT_THAT(refusal(with("[128, 512]", "[128]")), HasSubstr("the least and the most"));
  EXPECT_THAT(refusal(with("\"step_rows\": 1024", "\"step_rows\": 1000")), HasSubstr("a multiple of batch_rows, 512"));
  EXPECT_THAT(refusal(with("\"flat\": 0.5", "\"flat\": 0.05")), HasSubstr("stages[0].rate.flat is 0.05"));
  EXPECT_THAT(refusal(with("[\"entries\", \"window\"]", "[\"entires\"]")),
              HasSubstr("stages[1].rounding[0] is \"entires\""));
  EXPECT_THAT(refusal(with("\"drafts\"", "\"all\"")), HasSubstr("stages[1].trains"));
  EXPECT_THAT(refusal(with("\"drafts\"", R"("drafts", "sliding_window": 8)")),
              HasSubstr("stages[1].sliding_window is 8; it must be left out: drafts see the config's window"));
  EXPECT_THAT(refusal(with("\"batch_rows\": 512,", R"("batch_rows": 512, "sliding_window": 0,)")),
              HasSubstr("stages[0].sliding_window is 0; it must be"));
  EXPECT_THAT(refusal(with("\"batch_rows\": 512,", R"("batch_rows": 512, "optimizer": "adam",)")),
              HasSubstr(R"(stages[0].optimizer is "adam"; it must be "muon" or "adamw")"));
  EXPECT_THAT(refusal(with("\"second\"", "\"first\"")), HasSubstr("a name that no other stage has"));
  EXPECT_THAT(refusal(with("\"tokens\": 100000", "\"tokens\": 1e5")), HasSubstr("stages[0].tokens"));
}

TEST(Recipe, ThePocketModelsIsOne) {
  const Recipe recipe = load_recipe(std::string(TIDEPOOL_SOURCE_DIR) + "/models/pocket/recipe.json");
  EXPECT_EQ(recipe.name, "pocket");
  EXPECT_FALSE(recipe.stages.empty());
}

}  // namespace
}  // namespace tidepool
