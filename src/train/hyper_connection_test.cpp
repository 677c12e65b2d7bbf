#include "train/hyper_connection.h"

#include <gtest/gtest.h>

#include "model/golden_test_support.h"
#include "train/gradient_check.h"

namespace tidepool {
namespace {

constexpr size_t kStreams = 4;
constexpr size_t kCoefficients = 2 * kStreams + kStreams * kStreams;

struct MixCase {
  TestRandom random{1};
  size_t rows = 3;
  size_t width = 5;
  Leaf<double> stream{random, rows, kStreams* width};
  Leaf<double> fn{random, kCoefficients, kStreams* width};
  Leaf<double> base{random, 1, kCoefficients};
  Leaf<double> scale{random, 1, 3};
  HyperConnectionShape shape{kStreams, 20, 1e-6, 1e-20};

  HyperConnectionParameters<double> parameters() { return {fn.value(), base.value(), scale.value()}; }
};

TEST(TrainHyperConnection, MixGradientsGoBackThroughAllIterations) {
  MixCase test;
  expect_gradients({.run =
                        [&](Tape<double>& tape) {
                          const auto mix =
                              hyper_connection_mix(tape, test.shape, test.parameters(), test.stream.value());
                          return std::vector{mix.pre, mix.post, mix.comb};
                        },
                    .inputs = {{"stream", test.stream}, {"fn", test.fn}, {"base", test.base}, {"scale", test.scale}},
                    .entries = 60});
}

TEST(TrainHyperConnection, CollapseExpandSpreadAndMeanGradients) {
  MixCase test;
  Leaf<double> pre(test.random, test.rows, kStreams);
  Leaf<double> post(test.random, test.rows, kStreams);
  Leaf<double> comb(test.random, test.rows, kStreams * kStreams);
  Leaf<double> x(test.random, test.rows, test.width);
  expect_gradients(
      {.run =
           [&](Tape<double>& tape) {
             const Value<double> spread = spread_streams(tape, x.value(), kStreams);
             const HyperConnection<double> mix = {pre.value(), post.value(), comb.value()};
             const Value<double> y = collapse_streams(tape, test.stream.value(), pre.value());
             const Value<double> out = expand_streams(tape, mix, test.stream.value(), y);
             return std::vector{expand_streams(tape, mix, spread, x.value()), mean_streams(tape, out, kStreams)};
           },
       .inputs = {{"stream", test.stream}, {"pre", pre}, {"post", post}, {"comb", comb}, {"x", x}},
       .entries = 60});
}

TEST(TrainHyperConnection, FirstMixTakesStreamZero) {
  MixCase test;
  ThreadPool pool(1);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  const Value<double> y = collapse_streams(tape, test.stream.value(), first_mix(tape, test.rows, kStreams));
  for (size_t row = 0; row < test.rows; ++row)
    EXPECT_TRUE(std::ranges::equal(y.data.row(row), test.stream.value().data.row(row).first(test.width)));
}

Leaf<float> golden_leaf(const golden::Case& golden, const std::string& name, size_t rows) {
  const std::vector<float> values = golden.floats(name);
  Leaf<float> leaf(rows, values.size() / rows);
  leaf.data() = values;
  return leaf;
}

void expect_close(const Value<float>& a, const std::vector<float>& b, float bound) {
  for (size_t row = 0; row < a.rows(); ++row) {
    for (size_t i = 0; i < a.cols(); ++i)
      EXPECT_NEAR(a.data.at(row, i), b[row * a.cols() + i], bound) << row << ", " << i;
  }
}

TEST(TrainHyperConnection, EqualsTheGoldenVectors) {
  const golden::Case golden("kernels");
  Leaf<float> stream = golden_leaf(golden, "hc.stream", 6);
  Leaf<float> fn = golden_leaf(golden, "hc.fn", kCoefficients);
  Leaf<float> base = golden_leaf(golden, "hc.base", 1);
  Leaf<float> scale = golden_leaf(golden, "hc.scale", 1);
  Leaf<float> sub = golden_leaf(golden, "hc.sub", 6);
  ThreadPool pool(2);
  Tape<float> tape(pool, Tape<float>::Mode::kForward);
  const HyperConnection<float> mix = hyper_connection_mix(tape, {kStreams, 20, 1e-6, 1e-20},
                                                          {fn.value(), base.value(), scale.value()}, stream.value());
  expect_close(mix.pre, golden.floats("hc.pre"), 1e-5F);
  expect_close(mix.post, golden.floats("hc.post"), 1e-5F);
  expect_close(mix.comb, golden.floats("hc.comb"), 1e-5F);
  // One step of bfloat16, 2^-8 of the value; the largest are below 8.
  expect_close(collapse_streams(tape, stream.value(), mix.pre), golden.floats("hc.collapsed"), 8 * 0x1p-8F);
  expect_close(expand_streams(tape, mix, stream.value(), sub.value()), golden.floats("hc.expanded"), 8 * 0x1p-8F);
}

}  // namespace
}  // namespace tidepool
