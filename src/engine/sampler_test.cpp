#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/sampler_random.h"

namespace tidepool {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  logits.reserve(probabilities.size());
  for (const double p : probabilities)
    logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

int32_t sample_id(const std::vector<float>& logits, const SamplingParams& params, double draw) {
  Sampler sampler;
  return sampler.sample({.logits = logits, .params = &params, .draw = draw}).id;
}

/// Ids that come up when `draw` walks through [0, 1) in 1,000 steps.
std::set<int32_t> reachable(const std::vector<float>& logits, const SamplingParams& params) {
  std::set<int32_t> ids;
  for (int i = 0; i < 1000; ++i)
    ids.insert(sample_id(logits, params, i / 1000.0));
  return ids;
}

std::string numeric_refusal(const SampleRequest& request) {
  Sampler sampler;
  try {
    (void)sampler.sample(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNumeric);
    return error.what();
  }
  return "";
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(sample_id({1, 3, 2}, params, 0.99), 1);
  EXPECT_EQ(sample_id({1, 3, 3, 2}, params, 0.99), 1);
  EXPECT_EQ(sample_id({-kInfinity, -5, -kInfinity}, params, 0), 1);
}

/// Probabilities 0.5, 0.25, 0.25: the draw is compared with the running sum in the order of ids.
TEST(Sampler, APenaltyNearZeroOverflowsToTheLargestNumberAndStaysDrawable) {
  SamplingParams params;
  params.temperature = 1;
  params.repetition_penalty = 1e-320;  // zero in binary32: 3 / 0 would be infinite
  TokenHistory history(3);
  history.add_generated(1);
  Sampler sampler;
  const std::vector<float> logits{1, 3, 2};
  for (const double draw : {0.0, 0.5, 0.999}) {
    EXPECT_EQ(sampler.sample({.logits = logits, .params = &params, .history = &history, .draw = draw}).id, 1);
  }
}

TEST(Sampler, DrawFallsIntoTheCumulativeDistribution) {
  const std::vector<float> logits = logits_of({0.25, 0.5, 0.25});
  const SamplingParams params;
  EXPECT_EQ(sample_id(logits, params, 0), 0);
  EXPECT_EQ(sample_id(logits, params, 0.249), 0);
  EXPECT_EQ(sample_id(logits, params, 0.251), 1);
  EXPECT_EQ(sample_id(logits, params, 0.749), 1);
  EXPECT_EQ(sample_id(logits, params, 0.751), 2);
  EXPECT_EQ(sample_id(logits, params, std::nextafter(1.0, 0.0)), 2);
}

/// At temperature 0.5 the probabilities 0.25, 0.5, 0.25 are squared: 1/6, 2/3, 1/6.
TEST(Sampler, TemperatureIsAppliedBeforeTheDraw) {
  const std::vector<float> logits = logits_of({0.25, 0.5, 0.25});
  SamplingParams params;
  params.temperature = 0.5;
  EXPECT_EQ(sample_id(logits, params, 0.166), 0);
  EXPECT_EQ(sample_id(logits, params, 0.167), 1);
  EXPECT_EQ(sample_id(logits, params, 0.833), 1);
  EXPECT_EQ(sample_id(logits, params, 0.834), 2);
}

/// Eight classes, 200,000 draws of a fixed seed. The critical value of chi-square with 7 degrees of freedom at 0.1 % is
/// 24.32.
TEST(Sampler, FrequenciesFollowTheDistribution) {
  const std::vector<double> probabilities = {0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02};
  const std::vector<float> logits = logits_of(probabilities);
  const SamplingParams params;
  Sampler sampler;
  std::vector<double> counts(probabilities.size());
  constexpr int kDraws = 200'000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const SampleRequest request{.logits = logits, .params = &params, .draw = random_unit(11, i)};
    ++counts[static_cast<size_t>(sampler.sample(request).id)];
  }
  double chi_square = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * kDraws;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 24.32);
}

TEST(Sampler, TopKKeepsTheMostLikely) {
  const std::vector<float> logits = logits_of({0.1, 0.4, 0.2, 0.3});
  SamplingParams params;
  params.top_k = 2;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{1, 3}));
  params.top_k = 1;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{1}));
  params.top_k = 99;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{0, 1, 2, 3}));
  params.top_k = -1;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{0, 1, 2, 3}));
}

TEST(Sampler, TopKTakesTheLowestIdAmongEquals) {
  SamplingParams params;
  params.top_k = 2;
  EXPECT_EQ(reachable({1, 1, 1, 1}, params), (std::set<int32_t>{0, 1}));
}

/// Sorted: 0.4, 0.3, 0.2, 0.1 with running sums 0.4, 0.7, 0.9, 1.
TEST(Sampler, TopPKeepsTheSmallestSetThatReachesTheMass) {
  const std::vector<float> logits = logits_of({0.1, 0.4, 0.2, 0.3});
  SamplingParams params;
  params.top_p = 0.39;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{1}));
  params.top_p = 0.41;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{1, 3}));
  params.top_p = 0.69;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{1, 3}));
  params.top_p = 0.89;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{1, 2, 3}));
  params.top_p = 1e-9;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{1}));
}

/// top_k 2 leaves 0.4 and 0.3, renormalised 0.571 and 0.429: top_p 0.56 is reached by the first alone, though of the
/// whole distribution it holds only 0.4.
TEST(Sampler, TopPCountsTheMassThatTopKLeft) {
  const std::vector<float> logits = logits_of({0.1, 0.4, 0.2, 0.3});
  SamplingParams params;
  params.top_k = 2;
  params.top_p = 0.56;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{1}));
  params.top_p = 0.58;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{1, 3}));
}

/// Relative to 0.4 the others have 0.25, 0.5 and 0.75.
TEST(Sampler, MinPIsRelativeToTheMostLikely) {
  const std::vector<float> logits = logits_of({0.1, 0.4, 0.2, 0.3});
  SamplingParams params;
  params.min_p = 0.24;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{0, 1, 2, 3}));
  params.min_p = 0.26;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{1, 2, 3}));
  params.min_p = 0.76;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{1}));
  params.min_p = 1;
  EXPECT_EQ(reachable(logits, params), (std::set<int32_t>{1}));
}

/// The set of a full sort against that of the selection, over vocabularies larger than its sorted leaves, with ties.
TEST(Sampler, SelectionEqualsASortOfEverything) {
  for (uint64_t round = 0; round < 40; ++round) {
    const auto vocab = static_cast<size_t>(40 + 37 * round);
    std::vector<float> logits;
    for (size_t id = 0; id < vocab; ++id)
      logits.push_back(std::floor(static_cast<float>(random_unit(round, id)) * 40) / 8);
    SamplingParams params;
    params.top_p = 0.05 + 0.9 * random_unit(1000, round);
    params.top_k = round % 2 == 0 ? 0 : static_cast<int64_t>(vocab / 3);

    std::vector<int32_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return logits[size_t(a)] > logits[size_t(b)]; });
    if (params.top_k > 0) order.resize(static_cast<size_t>(params.top_k));
    double total = 0;
    for (const int32_t id : order)
      total += std::exp(static_cast<double>(logits[size_t(id)]));
    double mass = 0;
    size_t kept = 0;
    while (mass < params.top_p * total)
      mass += std::exp(static_cast<double>(logits[size_t(order[kept++])]));
    order.resize(kept);
    std::ranges::sort(order);

    // The draws at both ends reach the lowest and the highest id of the set.
    EXPECT_EQ(sample_id(logits, params, 0), order.front()) << "round " << round;
    EXPECT_EQ(sample_id(logits, params, std::nextafter(1.0, 0.0)), order.back()) << "round " << round;
  }
}

/// Token 0 in the prompt, token 1 twice generated, token 2 untouched. Repetition 2: 4 / 2 = 2, -3 * 2 = -6.
/// Frequency 0.5 and presence 0.25 touch the generated one: -6 - 2 * 0.5 - 0.25 = -7.25.
TEST(Sampler, PenaltiesAreAppliedInOrder) {
  TokenHistory history(3);
  history.add_prompt(0);
  history.add_generated(1);
  history.add_generated(1);
  SamplingParams params;
  params.repetition_penalty = 2;
  params.frequency_penalty = 0.5;
  params.presence_penalty = 0.25;
  std::vector<float> logits = {4, -3, 1};
  history.penalise(params, logits);
  EXPECT_THAT(logits, testing::ElementsAre(2, -7.25F, 1));
}

TEST(Sampler, PenaltiesChangeTheChoice) {
  TokenHistory history(3);
  history.add_generated(0);
  SamplingParams params;
  params.temperature = 0;
  params.presence_penalty = 1;
  const std::vector<float> logits = {2, 1.5F, 1};
  Sampler sampler;
  EXPECT_EQ(sampler.sample({.logits = logits, .params = &params, .history = &history}).id, 1);
}

TEST(Sampler, LogitBiasIsAddedOnce) {
  SamplingParams params;
  params.temperature = 0;
  params.logit_bias = {{2, 1.5}};
  EXPECT_EQ(sample_id({2, 1, 0.4F}, params, 0), 0);
  EXPECT_EQ(sample_id({2, 1, 0.6F}, params, 0), 2);
}

TEST(Sampler, ForbiddenTokensAreNotTaken) {
  SamplingParams params;
  params.temperature = 0;
  const std::vector<float> logits = {3, 2, 1};
  const std::vector<int32_t> forbidden = {0, 1};
  Sampler sampler;
  EXPECT_EQ(sampler.sample({.logits = logits, .params = &params, .forbidden = forbidden}).id, 2);
}

/// Lets only one token through.
class OnlyToken : public LogitsConstraint {
 public:
  explicit OnlyToken(size_t id) : id_(id) {}
  void mask(std::span<float> logits) override {
    for (size_t id = 0; id < logits.size(); ++id)
      if (id != id_) logits[id] = -kInfinity;
  }
  void accept(int32_t) override {}

 private:
  size_t id_;
};

TEST(Sampler, ConstraintIsHonoured) {
  OnlyToken constraint(2);
  const SamplingParams params;
  const std::vector<float> logits = {3, 2, 1};
  Sampler sampler;
  EXPECT_EQ(sampler.sample({.logits = logits, .params = &params, .constraint = &constraint, .draw = 0.1}).id, 2);
}

/// ln 0.5 = -0.6931, ln 0.25 = -1.3863; the logits are shifted by 7, which a distribution does not see. Temperature and
/// bias change the choice but not what is reported.
TEST(Sampler, LogprobsAreOfTheModelsOwnDistribution) {
  std::vector<float> logits = logits_of({0.25, 0.5, 0.25});
  for (float& logit : logits)
    logit += 7;
  SamplingParams params;
  params.temperature = 0;
  params.logit_bias = {{2, 100}};
  params.top_logprobs = 2;
  Sampler sampler;
  const SampledToken token = sampler.sample({.logits = logits, .params = &params});
  EXPECT_EQ(token.id, 2);
  ASSERT_TRUE(token.logprobs);
  EXPECT_NEAR(token.logprobs->chosen, std::log(0.25), 1e-6);
  EXPECT_EQ(token.logprobs->rank, 2);
  ASSERT_EQ(token.logprobs->top.size(), 2U);
  EXPECT_EQ(token.logprobs->top[0].id, 1);
  EXPECT_NEAR(token.logprobs->top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(token.logprobs->top[1].id, 0);
}

TEST(Sampler, LogprobsOfTheChosenTokenAlone) {
  SamplingParams params;
  params.top_logprobs = 0;
  Sampler sampler;
  const std::vector<float> logits = {0, -kInfinity};
  const SampledToken token = sampler.sample({.logits = logits, .params = &params});
  ASSERT_TRUE(token.logprobs);
  EXPECT_EQ(token.logprobs->chosen, 0);
  EXPECT_TRUE(token.logprobs->top.empty());
}

TEST(Sampler, MoreTopLogprobsThanTokensGivesAll) {
  SamplingParams params;
  params.top_logprobs = 20;
  Sampler sampler;
  const std::vector<float> logits = {0, 1};
  EXPECT_EQ(sampler.sample({.logits = logits, .params = &params}).logprobs->top.size(), 2U);
}

TEST(Sampler, LogitsThatAreNoDistributionAreErrors) {
  const SamplingParams params;
  const std::vector<float> nan = {0, std::nanf(""), 0};
  const std::vector<float> nothing = {-kInfinity, -kInfinity};
  const std::vector<float> infinite = {0, kInfinity};
  EXPECT_THAT(numeric_refusal({.logits = nan, .params = &params}), testing::HasSubstr("NaN at token 1"));
  EXPECT_THAT(numeric_refusal({.logits = infinite, .params = &params}), testing::HasSubstr("+infinity at token 1"));
  EXPECT_THAT(numeric_refusal({.logits = nothing, .params = &params}), testing::HasSubstr("all -infinity"));
}

TEST(Sampler, NothingLeftToChooseIsAnError) {
  const SamplingParams params;
  const std::vector<float> logits = {1, 2};
  const std::vector<int32_t> forbidden = {0, 1};
  EXPECT_THAT(numeric_refusal({.logits = logits, .params = &params, .forbidden = forbidden}),
              testing::HasSubstr("no token is left"));
}

}  // namespace
}  // namespace tidepool
