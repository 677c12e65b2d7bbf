#include "train/moe.h"

#include <gtest/gtest.h>

#include <numeric>

#include "train/gradient_check.h"
#include "train/router.h"
#include "train/swiglu.h"

namespace tidepool {
namespace {

constexpr size_t kExperts = 5;
constexpr size_t kTokenWidth = 6;
constexpr size_t kInner = 4;
constexpr size_t kTokenRows = 9;

/// A parameter whose value is a leaf's.
Parameter<double> parameter_of(Leaf<double>& leaf) {
  Parameter<double> parameter;
  parameter.value = leaf.value();
  return parameter;
}

/// A small MoE with random weights, over two samples.
struct MoeCase {
  TestRandom random{4};
  Leaf<double> x{random, kTokenRows, kTokenWidth, 2};
  Leaf<double> gate{random, kExperts, kTokenWidth};
  Leaf<double> bias{random, 1, kExperts, 0.1};
  Leaf<double> bias_vl{random, 1, kExperts, 0.5};
  std::vector<Leaf<double>> w1;
  std::vector<Leaf<double>> w3;
  std::vector<Leaf<double>> w2;
  std::vector<Parameter<double>> owned;
  MoeParameters<double> parameters;
  std::vector<SampleRows> samples = {{0, 5, 0}, {5, 4, 2}};
  std::vector<uint8_t> is_image = {0, 0, 1, 1, 0, 0, 1, 0, 0};
  MoeTraining training{{.experts_per_token = 2, .routed_scaling_factor = 1.5F, .swiglu_limit = 1.0F}, {}, 0};

  MoeCase() {
    owned.reserve(3 * (kExperts + 1) + 3);
    w1.reserve(kExperts + 1);
    w3.reserve(kExperts + 1);
    w2.reserve(kExperts + 1);
    for (size_t e = 0; e <= kExperts; ++e) {
      w1.emplace_back(random, kInner, kTokenWidth);
      w3.emplace_back(random, kInner, kTokenWidth);
      w2.emplace_back(random, kTokenWidth, kInner);
      const ExpertParameters<double> expert = {own(w1.back()), own(w3.back()), own(w2.back())};
      if (e < kExperts) {
        parameters.experts.push_back(expert);
      } else {
        parameters.shared = expert;
      }
    }
    parameters.gate = own(gate);
    parameters.bias = own(bias);
    parameters.bias_vl = own(bias_vl);
  }
  const Parameter<double>* own(Leaf<double>& leaf) {
    owned.push_back(parameter_of(leaf));
    return &owned.back();
  }
  MoeResult<double> run(Tape<double>& tape) {
    return mixture_of_experts(tape, training, parameters, x.value(), {samples, is_image});
  }
};

std::vector<std::pair<std::string, Value<double>>> all_inputs(MoeCase& test) {
  std::vector<std::pair<std::string, Value<double>>> inputs = {{"x", test.x}, {"gate", test.gate}};
  for (size_t e = 0; e <= kExperts; ++e) {
    inputs.emplace_back("w1", test.w1[e]);
    inputs.emplace_back("w3", test.w3[e]);
    inputs.emplace_back("w2", test.w2[e]);
  }
  return inputs;
}

TEST(TrainMoe, GradientsAreThoseOfFiniteDifferences) {
  for (const bool norm : {true, false}) {
    MoeCase test;
    test.training.config.norm_topk_prob = norm;
    expect_gradients(
        {.run = [&](Tape<double>& tape) { return std::vector{test.run(tape).y}; }, .inputs = all_inputs(test)});
  }
}

TEST(TrainMoe, RoutingGradientsAreThoseOfFiniteDifferences) {
  for (const bool norm : {true, false}) {
    MoeCase test;
    test.training.config.norm_topk_prob = norm;
    Leaf<double> logits(test.random, kTokenRows, kExperts, 3);
    const MoeRows rows{test.samples, test.is_image};
    expect_gradients({.run =
                          [&](Tape<double>& tape) {
                            const Routing<double> routing =
                                route(tape, test.training, test.parameters, logits.value(), rows);
                            return std::vector{routing.weights, routing.scores};
                          },
                      .inputs = {{"logits", logits}}});
    expect_gradients({.loss =
                          [&](Tape<double>& tape) {
                            const Routing<double> routing =
                                route(tape, test.training, test.parameters, logits.value(), rows);
                            return balance_loss(tape, 3, routing, test.samples);
                          },
                      .inputs = {{"logits", logits}}});
  }
}

TEST(TrainMoe, BalanceLossGradientsAreThoseOfFiniteDifferences) {
  MoeCase test;
  test.training.balance_weight = 3;
  expect_gradients({.loss =
                        [&](Tape<double>& tape) {
                          const MoeResult<double> result = test.run(tape);
                          return result.balance_loss;
                        },
                    .inputs = {{"x", test.x}, {"gate", test.gate}}});
}

TEST(TrainMoe, BalanceLossIsItsWeightWhereAllExpertsAreUsedAlike) {
  // With all scores equal P = 1 / E, and f sums to E: the loss is weight * sum(f) / E.
  MoeCase test;
  test.training.balance_weight = 0.7;
  std::ranges::fill(test.gate.data(), 0.0);
  ThreadPool pool(1);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  EXPECT_NEAR(test.run(tape).balance_loss, 0.7, 1e-12);
}

TEST(TrainMoe, LoadsCountTextAndImageRowsApart) {
  MoeCase test;
  ThreadPool pool(2);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  const ExpertLoads loads = test.run(tape).loads;
  EXPECT_EQ(std::accumulate(loads.text.begin(), loads.text.end(), int64_t{0}), 6 * 2);
  EXPECT_EQ(std::accumulate(loads.image.begin(), loads.image.end(), int64_t{0}), 3 * 2);
}

TEST(TrainMoe, EachKindOfRowIsSteeredByItsOwnBias) {
  MoeCase test;
  std::ranges::fill(test.bias.data(), 0.0);
  std::ranges::fill(test.bias_vl.data(), 0.0);
  test.bias.data()[0] = 100;
  test.bias_vl.data()[1] = 100;
  ThreadPool pool(2);
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  const ExpertLoads loads = test.run(tape).loads;
  EXPECT_EQ(loads.text[0], 6);
  EXPECT_EQ(loads.image[1], 3);
}

TEST(TrainMoe, IsTheSameForAnyNumberOfThreads) {
  std::vector<std::vector<double>> results;
  for (const size_t threads : {size_t{1}, size_t{3}}) {
    MoeCase test;
    ThreadPool pool(threads);
    Tape<double> tape(pool, Tape<double>::Mode::kTraining);
    const MoeResult<double> result = test.run(tape);
    for (size_t row = 0; row < kTokenRows; ++row)
      std::ranges::fill(result.y.grad.row(row), 1.0);
    tape.backward();
    results.push_back(test.x.grad());
    results.back().insert(results.back().end(), test.w2[0].grad().begin(), test.w2[0].grad().end());
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(Swiglu, GradientsAreThoseOfFiniteDifferences) {
  TestRandom random(6);
  Leaf<double> gate(random, 3, 7, 3);
  Leaf<double> up(random, 3, 7, 3);
  Leaf<double> weight(random, 3, 1);
  for (const double limit : {0.0, 1.5}) {
    expect_gradients({.run =
                          [&](Tape<double>& tape) {
                            return std::vector{swiglu(tape, gate.value(), up.value(), weight.value(), limit)};
                          },
                      .inputs = {{"gate", gate}, {"up", up}, {"weight", weight}}});
  }
}

TEST(Swiglu, FloatEqualsTheEnginesKernelsAndClampedValuesGetNoGradient) {
  TestRandom random(5);
  Leaf<float> gate(random, 2, 40, 3);
  Leaf<float> up(random, 2, 40, 3);
  Leaf<float> weight(random, 2, 1);
  ThreadPool pool(1);
  Tape<float> tape(pool, Tape<float>::Mode::kTraining);
  const Value<float> h = swiglu(tape, gate.value(), up.value(), weight.value(), 1.5F);
  std::vector<float> expected(40);
  for (size_t row = 0; row < 2; ++row) {
    tape.kernels().swiglu(gate.value().data.row(row).data(), up.value().data.row(row).data(), 40, 1.5F,
                          weight.data()[row], expected.data());
    EXPECT_TRUE(std::ranges::equal(h.data.row(row), expected));
    std::ranges::fill(h.grad.row(row), 1.0F);
  }
  tape.backward();
  for (size_t i = 0; i < gate.data().size(); ++i) {
    EXPECT_EQ(gate.grad()[i] == 0, gate.data()[i] >= 1.5F);
    EXPECT_EQ(up.grad()[i] == 0, std::fabs(up.data()[i]) >= 1.5F);
  }
}

}  // namespace
}  // namespace tidepool
