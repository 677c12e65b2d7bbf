#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "formats/checkpoint.h"
#include "train/gradient_check.h"

namespace tidepool {
namespace {

ModelConfig text_only_config() {
  return load_config(std::string(TIDEPOOL_GOLDEN_DIR) + "/ckpt_textonly/config.json");
}

constexpr auto kFloat32 = kernels::GemmPrecision::kFloat32;
const char* const kDense = "layers.0.attn.wq_a.weight";
const char* const kQueries = "layers.0.attn.wq_b.weight";
const char* const kNorm = "layers.0.attn_norm.weight";
const char* const kSink = "layers.0.attn.attn_sink";
const char* const kBias = "layers.0.ffn.gate.bias";

std::span<float> values(Parameter<float>& parameter) {
  return {parameter.value.data.data, parameter.value.rows() * parameter.value.cols()};
}
std::span<float> gradients(Parameter<float>& parameter) {
  return {parameter.value.grad.data, parameter.value.rows() * parameter.value.cols()};
}

/// Random values and gradients in all parameters; gradients depend on `seed`.
void fill(ParameterSet<float>& set, uint64_t seed) {
  TestRandom random(seed);
  for (Parameter<float>& parameter : set.all()) {
    for (float& value : gradients(parameter))
      value = static_cast<float>(random.value());
  }
}

double rms(std::span<const float> x) {
  double squares = 0;
  for (const float value : x)
    squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares / static_cast<double>(x.size()));
}

TEST(Optimizer, MovesNothingByAGradientThatIsNotFinite) {
  for (const float wrong : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    ParameterSet<float> set(text_only_config());
    fill(set, 1);
    gradients(set.get(kSink)).front() = wrong;
    ThreadPool pool(1);
    Optimizer optimizer(pool, set, {}, kFloat32);
    EXPECT_FALSE(std::isfinite(optimizer.step(0.01, {}).gradient_norm));
    EXPECT_EQ(rms(values(set.get(kDense))), 0);
    EXPECT_EQ(optimizer.steps(), 0);
    for (const Optimizer::State& state : optimizer.state())
      EXPECT_EQ(rms(state.values), 0) << state.name;
  }
}

TEST(Optimizer, MovesEachGroupByItsPublishedRms) {
  ParameterSet<float> set(text_only_config());
  fill(set, 1);
  ThreadPool pool(2);
  Optimizer optimizer(pool, set, {}, kFloat32);
  (void)optimizer.step(0.01, {});
  // All values were 0, so what they are now is the update. Muon's singular values are within a tenth of 1.
  EXPECT_NEAR(rms(values(set.get(kDense))), 0.0018, 0.0002);
  EXPECT_NEAR(rms(values(set.get(kQueries))), 0.0018, 0.0002);
  EXPECT_NEAR(rms(set.get("embed.weight").value.data.row(5)), 0.0018, 1e-8);
  EXPECT_NEAR(rms(set.get("head.weight").value.data.row(5)), 0.0018, 1e-8);
  // Adam's first step is the sign of the gradient.
  for (size_t i = 0; i < values(set.get(kNorm)).size(); ++i)
    EXPECT_NEAR(values(set.get(kNorm))[i], gradients(set.get(kNorm))[i] > 0 ? -0.01 : 0.01, 1e-8);
}

TEST(Optimizer, AdamWMovesMatricesBySignsAndLeavesBiasesToTheirLoads) {
  ParameterSet<float> set(text_only_config());
  fill(set, 1);
  ThreadPool pool(1);
  Optimizer optimizer(pool, set, {.matrices = MatrixOptimizer::kAdamW}, kFloat32);
  std::vector<int64_t> loads(values(set.get(kBias)).size(), 10);
  loads[0] = 14;
  (void)optimizer.step(0.01, {{kBias, loads}});
  // All values were 0 and do not decay; the first step is the sign of the gradient.
  for (const char* name : {kDense, kQueries, "embed.weight", "head.weight"}) {
    const Parameter<float>& parameter = set.get(name);
    const float gradient = parameter.value.grad.data[7];
    EXPECT_NEAR(parameter.value.data.data[7], gradient > 0 ? -0.01 : 0.01, 1e-8) << name;
    EXPECT_NEAR(rms(values(set.get(name))), 0.01, 1e-8) << name;
  }
  EXPECT_FLOAT_EQ(values(set.get(kBias))[0], -0.001F);
}

TEST(Optimizer, QueriesMoveHeadByHead) {
  // The update of a head does not depend on the gradient of another.
  std::vector<std::vector<float>> heads;
  for (const float scale : {1.0F, 100.0F}) {
    ParameterSet<float> set(text_only_config());
    fill(set, 1);
    Parameter<float>& queries = set.get(kQueries);
    const size_t head = queries.head_rows * queries.value.cols();
    for (float& value : gradients(queries).subspan(head))
      value *= scale;
    ThreadPool pool(1);
    Optimizer optimizer(pool, set, {}, kFloat32);
    (void)optimizer.step(0.01, {});
    heads.emplace_back(values(queries).begin(), values(queries).begin() + static_cast<std::ptrdiff_t>(head));
  }
  EXPECT_EQ(heads[0], heads[1]);
}

TEST(Optimizer, WeightDecayIsForLayersAndNormsAlone) {
  ParameterSet<float> set(text_only_config());
  for (Parameter<float>& parameter : set.all())
    std::ranges::fill(values(parameter), 1.0F);
  ThreadPool pool(1);
  Optimizer optimizer(pool, set, {}, kFloat32);
  (void)optimizer.step(0.5, {});  // no gradients: what moves is the decay
  for (const char* name : {kDense, kQueries, kNorm})
    EXPECT_FLOAT_EQ(values(set.get(name))[0], 0.95F) << name;
  for (const char* name : {"embed.weight", "head.weight", kSink, kBias})
    EXPECT_EQ(values(set.get(name))[0], 1.0F) << name;
}

TEST(Optimizer, BiasesMoveTowardsEqualLoad) {
  ParameterSet<float> set(text_only_config());
  ThreadPool pool(1);
  Optimizer optimizer(pool, set, {}, kFloat32);
  std::vector<int64_t> loads(values(set.get(kBias)).size(), 10);
  loads[0] = 14;
  loads[1] = 6;
  (void)optimizer.step(1, {{kBias, loads}});
  EXPECT_FLOAT_EQ(values(set.get(kBias))[0], -0.001F);
  EXPECT_FLOAT_EQ(values(set.get(kBias))[1], 0.001F);
  EXPECT_EQ(values(set.get(kBias))[2], 0.0F);
}

TEST(Optimizer, ClipsByTheNormOfAllGradientsTogether) {
  ParameterSet<float> set(text_only_config());
  gradients(set.get(kDense))[3] = 3;
  gradients(set.get("norm.weight"))[1] = -4;
  ThreadPool pool(2);
  Optimizer optimizer(pool, set, {.clip_norm = 1}, kFloat32);
  EXPECT_DOUBLE_EQ(optimizer.step(0, {}).gradient_norm, 5);
  EXPECT_FLOAT_EQ(gradients(set.get(kDense))[3], 0.6F);
  EXPECT_FLOAT_EQ(gradients(set.get("norm.weight"))[1], -0.8F);
}

TEST(Optimizer, WhatIsNotTrainedStays) {
  ParameterSet<float> set(text_only_config());
  fill(set, 2);
  std::ranges::fill(values(set.get(kDense)), 1.0F);
  ThreadPool pool(1);
  Optimizer optimizer(pool, set, {.is_trained = [](const auto& parameter) { return parameter.name == kNorm; }},
                      kFloat32);
  (void)optimizer.step(0.1, {});
  EXPECT_EQ(rms(values(set.get(kDense))), 1);
  EXPECT_NE(rms(values(set.get(kNorm))), 0);
  EXPECT_EQ(optimizer.state().size(), 2U);
}

std::vector<float> all_values(ParameterSet<float>& set) {
  std::vector<float> result;
  for (Parameter<float>& parameter : set.all())
    result.insert(result.end(), values(parameter).begin(), values(parameter).end());
  return result;
}

TEST(Optimizer, GoesOnBitForBitFromItsStateOnAnyNumberOfThreads) {
  ThreadPool one(1);
  ThreadPool three(3);
  ParameterSet<float> whole(text_only_config());
  Optimizer through(one, whole, {.clip_norm = 0.5}, kernels::GemmPrecision::kBf16);
  for (uint64_t step = 0; step < 2; ++step) {
    fill(whole, step);
    (void)through.step(0.01, {});
  }
  ParameterSet<float> resumed(text_only_config());
  Optimizer second(three, resumed, {.clip_norm = 0.5}, kernels::GemmPrecision::kBf16);
  for (size_t i = 0; i < whole.all().size(); ++i)
    std::ranges::copy(values(whole.all()[i]), values(resumed.all()[i]).begin());
  const std::vector<Optimizer::State> from = through.state();
  const std::vector<Optimizer::State> to = second.state();
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(from[i].name, to[i].name);
    std::ranges::copy(from[i].values, to[i].values.begin());
  }
  second.set_steps(through.steps());
  fill(whole, 7);
  fill(resumed, 7);
  (void)through.step(0.01, {});
  (void)second.step(0.01, {});
  EXPECT_EQ(all_values(whole), all_values(resumed));
}

}  // namespace
}  // namespace tidepool
