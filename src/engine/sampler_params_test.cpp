#include "engine/sampler_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "base/error.h"

namespace tidepool {
namespace {

constexpr size_t kVocab = 10;

std::string refusal(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  try {
    check_sampling_params(params, kVocab);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(SamplingParams, DefaultsAreAccepted) {
  EXPECT_EQ(refusal([](SamplingParams&) {}), "");
}

TEST(SamplingParams, BoundsAreAccepted) {
  EXPECT_EQ(refusal([](SamplingParams& p) {
              p.temperature = 2;
              p.top_k = -1;
              p.min_p = 1;
              p.presence_penalty = -2;
              p.frequency_penalty = 2;
              p.repetition_penalty = 2;
              p.logit_bias = {{0, -100}, {9, 100}};
              p.top_logprobs = 20;
            }),
            "");
}

TEST(SamplingParams, RefusalsNameFieldValueAndRange) {
  EXPECT_EQ(refusal([](SamplingParams& p) { p.temperature = 2.5; }), "temperature is 2.5; it must be from 0 to 2");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.temperature = std::nan(""); }),
            "temperature is nan; it must be from 0 to 2");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.top_p = 0; }), "top_p is 0; it must be above 0 and at most 1");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.top_k = -2; }),
            "top_k is -2; it must be 0 or -1 (all tokens), or positive");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.min_p = 1.5; }), "min_p is 1.5; it must be from 0 to 1");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.presence_penalty = 3; }),
            "presence_penalty is 3; it must be from -2 to 2");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.frequency_penalty = -3; }),
            "frequency_penalty is -3; it must be from -2 to 2");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.repetition_penalty = 0; }),
            "repetition_penalty is 0; it must be above 0 and at most 2");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.top_logprobs = 21; }), "top_logprobs is 21; it must be from 0 to 20");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.seed = uint64_t{1} << 63U; }),
            "seed is 9223372036854775808; it must be below 2^63");
}

TEST(SamplingParams, LogitBiasIsChecked) {
  EXPECT_EQ(refusal([](SamplingParams& p) {
              p.logit_bias = {{10, 1}};
            }),
            "logit_bias names token 10; the model has tokens 0 to 9");
  EXPECT_EQ(refusal([](SamplingParams& p) {
              p.logit_bias = {{-1, 1}};
            }),
            "logit_bias names token -1; the model has tokens 0 to 9");
  EXPECT_EQ(refusal([](SamplingParams& p) {
              p.logit_bias = {{3, 101}};
            }),
            "logit_bias of token 3 is 101; it must be from -100 to 100");
  EXPECT_EQ(refusal([](SamplingParams& p) {
              p.logit_bias = {{3, 1}, {2, 1}, {3, 2}};
            }),
            "logit_bias names token 3 twice");
}

TEST(SamplingParams, GreedyBelowTheSmallestUsefulTemperature) {
  SamplingParams params;
  params.temperature = 0;
  EXPECT_TRUE(params.is_greedy());
  params.temperature = 1e-5;
  EXPECT_FALSE(params.is_greedy());
}

}  // namespace
}  // namespace tidepool
