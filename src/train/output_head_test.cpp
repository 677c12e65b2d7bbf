#include "train/output_head.h"

#include <gtest/gtest.h>

#include "train/gradient_check.h"

namespace tidepool {
namespace {

struct HeadCase {
  TestRandom random{1};
  size_t rows;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  Leaf<double> x;
  Leaf<double> head;

  explicit HeadCase(size_t rows_in) : rows(rows_in), x(random, rows, 6), head(random, 11, 6) {
    for (size_t row = 0; row < rows; ++row) {
      ids.push_back(static_cast<int32_t>(random.below(11)));
      weights.push_back(row % 3 == 1 ? 0.0F : 0.25F * static_cast<float>(row % 4));
    }
  }
};

TEST(CrossEntropy, GradientsAreThoseOfFiniteDifferencesOverSeveralChunks) {
  HeadCase test(2 * kHeadRows + 7);
  expect_gradients({.loss =
                        [&](Tape<double>& tape) {
                          return cross_entropy(tape, test.x.value(), test.head.value(), {test.ids, test.weights}).loss;
                        },
                    .inputs = {{"x", test.x}, {"head", test.head}},
                    .tolerance = 1e-6});  // the loss is a sum of some 100 rows
}

TEST(CrossEntropy, RowLossesAreTheNegativeLogOfTheSoftmax) {
  HeadCase test(5);
  ThreadPool pool(1);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  const CrossEntropy<double> result = cross_entropy(tape, test.x.value(), test.head.value(), {test.ids, test.weights});
  double loss = 0;
  for (size_t row = 0; row < test.rows; ++row) {
    double sum = 0;
    double target = 0;
    for (size_t v = 0; v < 11; ++v) {
      double logit = 0;
      for (size_t i = 0; i < 6; ++i)
        logit += test.x.value().data.at(row, i) * test.head.value().data.at(v, i);
      sum += std::exp(logit);
      if (static_cast<int32_t>(v) == test.ids[row]) target = logit;
    }
    const double expected = test.weights[row] == 0 ? 0 : std::log(sum) - target;
    EXPECT_NEAR(result.row_losses[row], expected, 1e-14);
    loss += expected * static_cast<double>(test.weights[row]);
  }
  EXPECT_NEAR(result.loss, loss, 1e-13);
}

TEST(CrossEntropy, IsTheSameForAnyNumberOfThreads) {
  TestRandom random(3);
  const size_t rows = kHeadRows + 40;
  Leaf<float> x(random, rows, 32);
  Leaf<float> head(random, 90, 32);
  std::vector<int32_t> ids(rows, 7);
  std::vector<float> weights(rows, 0.5F);
  std::vector<std::vector<float>> gradients;
  for (const size_t threads : {size_t{1}, size_t{3}}) {
    ThreadPool pool(threads);
    Tape<float> tape(pool, Tape<float>::Mode::kTraining, kernels::GemmPrecision::kBf16);
    std::ranges::fill(x.grad(), 0.0F);
    std::ranges::fill(head.grad(), 0.0F);
    gradients.push_back({static_cast<float>(cross_entropy(tape, x.value(), head.value(), {ids, weights}).loss)});
    tape.backward();
    gradients.back().insert(gradients.back().end(), x.grad().begin(), x.grad().end());
    gradients.back().insert(gradients.back().end(), head.grad().begin(), head.grad().end());
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

}  // namespace
}  // namespace tidepool
