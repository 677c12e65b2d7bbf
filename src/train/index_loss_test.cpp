#include "train/index_loss.h"

#include <gtest/gtest.h>

#include <numeric>

#include "train/gradient_check.h"

namespace tidepool {
namespace {

constexpr size_t kLossHeads = 3;
constexpr size_t kLossWidth = 16;
constexpr size_t kLossRows = 7;
constexpr size_t kEntries = 9;
constexpr size_t kChosenMax = 5;

/// Rows that select 0, 1, ... 5 entries, with some attention to each.
template <typename Real>
struct LossCase {
  TestRandom random{11};
  Leaf<Real> q{random, kLossRows, kLossHeads* kLossWidth};
  Leaf<Real> weights{random, kLossRows, kLossHeads};
  Leaf<Real> keys{random, kEntries, kLossWidth};
  std::vector<uint32_t> chosen = std::vector<uint32_t>(kLossRows * kChosenMax);
  std::vector<uint32_t> counts = std::vector<uint32_t>(kLossRows);
  std::vector<Real> attention = std::vector<Real>(kLossRows * kChosenMax);

  LossCase() {
    for (size_t row = 0; row < kLossRows; ++row) {
      counts[row] = static_cast<uint32_t>(row % (kChosenMax + 1));
      for (size_t j = 0; j < counts[row]; ++j) {
        chosen[row * kChosenMax + j] = static_cast<uint32_t>(j + row % 4);
        attention[row * kChosenMax + j] = static_cast<Real>(random.value() + 1);
      }
    }
    attention[5 * kChosenMax] = 0;  // 0 log 0 is 0
  }
  [[nodiscard]] IndexLoss<Real> loss(Real scale) {
    return {.inputs = {q, weights, keys},
            .selection = {.entries = {chosen.data(), kLossRows, kChosenMax},
                          .counts = counts,
                          .attention = {attention.data(), kLossRows, kChosenMax}},
            .scale = scale};
  }
};

TEST(IndexLoss, GradientsAreThoseOfFiniteDifferences) {
  LossCase<double> c;
  expect_gradients({.loss = [&](Tape<double>& tape) { return 0.7 * index_loss(tape, c.loss(0.7)); },
                    .inputs = {{"q", c.q}, {"weights", c.weights}, {"keys", c.keys}},
                    .entries = 200});
}

TEST(IndexLoss, IsTheDivergenceOfTheScoresFromTheAttention) {
  LossCase<double> c;
  ThreadPool pool(2);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  double expected = 0;
  for (size_t row = 0; row < kLossRows; ++row) {
    std::vector<double> scores;
    double attention = 0;
    double sum = 0;
    for (size_t j = 0; j < c.counts[row]; ++j) {
      const double* key = c.keys.data().data() + c.chosen[row * kChosenMax + j] * kLossWidth;
      double score = 0;
      for (size_t h = 0; h < kLossHeads; ++h) {
        const double* q = c.q.data().data() + (row * kLossHeads + h) * kLossWidth;
        score += c.weights.value().data.at(row, h) * std::max(0.0, std::inner_product(q, q + kLossWidth, key, 0.0));
      }
      scores.push_back(score);
      attention += c.attention[row * kChosenMax + j];
      sum += std::exp(score);
    }
    for (size_t j = 0; j < c.counts[row]; ++j) {
      const double p = c.attention[row * kChosenMax + j] / attention;
      if (p > 0) expected += p * (std::log(p) - scores[j] + std::log(sum));
    }
  }
  EXPECT_NEAR(index_loss(tape, c.loss(1)), expected, 1e-12);
  EXPECT_NEAR(index_loss(tape, c.loss(2)), expected, 1e-12);
}

TEST(IndexLoss, IsNothingWhereTheScoresAreTheAttention) {
  LossCase<double> c;
  for (double& weight : c.weights.data())
    weight = 0;
  for (double& attention : c.attention)
    attention = 0.25;
  ThreadPool pool(1);
  Tape<double> tape(pool, Tape<double>::Mode::kTraining);
  EXPECT_NEAR(index_loss(tape, c.loss(1)), 0, 1e-15);
  tape.backward();
  for (const double gradient : c.weights.grad())
    EXPECT_NEAR(gradient, 0, 1e-15);
}

}  // namespace
}  // namespace tidepool
