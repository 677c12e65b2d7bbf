#include "session/generation_defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace tidepool {
namespace {

std::string refusal(const std::string& json) {
  try {
    (void)parse_generation_defaults(json, "generation_config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    return error.what();
  }
  return "";
}

TEST(GenerationDefaults, ReadsWhatMeansSomething) {
  const GenerationDefaults defaults = parse_generation_defaults(
      R"({"_from_model_config": true, "temperature": 0.6, "top_p": 0.95, "top_k": 40, "min_p": 0.1,
          "repetition_penalty": 1.1, "eos_token_id": [1, 7], "bos_token_id": 0})",
      "file");
  const SamplingParams params = defaults.sampling();
  EXPECT_EQ(params.temperature, 0.6);
  EXPECT_EQ(params.top_p, 0.95);
  EXPECT_EQ(params.top_k, 40);
  EXPECT_EQ(params.min_p, 0.1);
  EXPECT_EQ(params.repetition_penalty, 1.1);
  EXPECT_THAT(defaults.stop_ids, testing::ElementsAre(1, 7));
}

TEST(GenerationDefaults, NothingGivenIsTheSamplersOwn) {
  const SamplingParams params = parse_generation_defaults(R"({"top_p": null, "eos_token_id": 1})", "file").sampling();
  EXPECT_EQ(params.temperature, 1);
  EXPECT_EQ(params.top_p, 1);
}

TEST(GenerationDefaults, NoFileIsNoRecommendation) {
  EXPECT_FALSE(load_generation_defaults("no/such/generation_config.json").temperature);
}

TEST(GenerationDefaults, RefusalsNameFileAndKey) {
  EXPECT_EQ(refusal(R"({"temperature": "hot"})"),
            R"(generation_config.json: temperature is "hot" (should be a number))");
  EXPECT_EQ(refusal(R"({"top_k": 1.5})"), "generation_config.json: top_k is 1.5 (should be an integer)");
  EXPECT_EQ(refusal(R"({"eos_token_id": [1, -2]})"),
            "generation_config.json: eos_token_id is -2 (should be a token id or a list of them)");
  EXPECT_EQ(refusal("[]"), "generation_config.json: holds an array (should be an object)");
  EXPECT_THAT(refusal("{"), testing::StartsWith("generation_config.json: "));
}

}  // namespace
}  // namespace tidepool
