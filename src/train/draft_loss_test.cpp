#include "train/draft_loss.h"

#include <gtest/gtest.h>

#include "train/gradient_check.h"

namespace tidepool {
namespace {

constexpr size_t kDraftRows = 4;
constexpr size_t kVocab = 9;
constexpr std::array<int32_t, kDraftRows> kIds = {3, 0, 8, 3};
constexpr std::array<double, kDraftRows> kWeights = {1, 0.5, 0, 0.25};

struct DraftLossCase {
  TestRandom random{1};
  Leaf<double> logits{random, kDraftRows, kVocab, 2};
  Leaf<double> confidence{random, kDraftRows, 1, 2};
  Leaf<double> backbone{random, kDraftRows, kVocab, 2};

  [[nodiscard]] DraftLoss run(Tape<double>& tape, const Value<double>& c) {
    return draft_loss<double>(tape, logits, c, {backbone.value().data, kIds, kWeights});
  }
};

TEST(DraftLoss, GradientsOfLogitsAreThoseOfItsFirstTwoParts) {
  DraftLossCase c;
  // The distance gets no gradient through the confidence, so that part is left out of the difference.
  expect_gradients({.loss =
                        [&](Tape<double>& tape) {
                          const DraftLoss loss = c.run(tape, c.confidence);
                          return 0.1 * loss.cross_entropy + 0.9 * loss.distance;
                        },
                    .inputs = {{"logits", c.logits}}});
}

TEST(DraftLoss, GradientsOfConfidenceAreThoseOfFiniteDifferences) {
  DraftLossCase c;
  expect_gradients({.loss = [&](Tape<double>& tape) { return c.run(tape, c.confidence).total; },
                    .inputs = {{"confidence", c.confidence}}});
}

TEST(DraftLoss, IsThePublishedOne) {
  DraftLossCase c;
  ThreadPool pool(2);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  double total = 0;
  for (size_t row = 0; row < kDraftRows; ++row) {
    const auto probabilities = [&](Leaf<double>& leaf) {
      std::vector<double> p;
      double sum = 0;
      for (const double logit : leaf.value().data.row(row)) {
        p.push_back(std::exp(logit));
        sum += p.back();
      }
      for (double& value : p)
        value /= sum;
      return p;
    };
    const std::vector<double> draft = probabilities(c.logits);
    const std::vector<double> backbone = probabilities(c.backbone);
    double distance = 0;
    for (size_t i = 0; i < kVocab; ++i)
      distance += std::fabs(draft[i] - backbone[i]);
    const double accepted = 1 / (1 + std::exp(-c.confidence.data()[row]));
    const double target = 1 - distance / 2;
    total += kWeights[row] * (-0.1 * std::log(draft[static_cast<size_t>(kIds[row])]) + 0.9 * distance -
                              target * std::log(accepted) - (1 - target) * std::log(1 - accepted));
  }
  const DraftLoss loss = c.run(tape, c.confidence);
  EXPECT_NEAR(loss.total, total, 1e-13);
  EXPECT_EQ(loss.weight, 1.75);
}

}  // namespace
}  // namespace tidepool
