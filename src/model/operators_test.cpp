// One mechanism at a time against the golden `kernels` and `engram_*` cases; tolerances are those of the golden README.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "model/candidate_pool.h"
#include "model/compressor.h"
#include "model/engram.h"
#include "model/engram_hash.h"
#include "model/golden_test_support.h"
#include "model/hyper_connection.h"
#include "model/moe.h"
#include "model/rope.h"

namespace tidepool {
namespace {

/// One bfloat16 step at the size of `value`.
float bf16_step(float value) {
  return std::max(std::abs(value), 1e-30F) * 0.0079F;
}

void expect_near_all(std::span<const float> actual, std::span<const float> expected, float tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], tolerance) << "at " << i;
}

void expect_one_step(std::span<const float> actual, std::span<const float> expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(round_bf16(actual[i]), expected[i], bf16_step(expected[i])) << "at " << i;
  }
}

struct RopeCase {
  std::string prefix;
  int64_t dim;
  double base;
  std::optional<YarnConfig> yarn;
};

class RopeGolden : public testing::TestWithParam<RopeCase> {};

TEST_P(RopeGolden, FrequenciesAndAnglesAreTheReference) {
  const RopeCase& c = GetParam();
  const golden::Case kernels("kernels");
  const RopeTable table(c.dim, c.base, c.yarn ? &*c.yarn : nullptr);
  const bool is_released = c.prefix.starts_with("rope.released");
  const std::string values = is_released ? c.prefix : "rope." + c.prefix.substr(c.prefix.rfind('.') + 1);
  const std::vector<float> frequencies = kernels.floats(c.prefix + ".inv_freq");
  ASSERT_EQ(table.pairs(), frequencies.size());
  for (size_t i = 0; i < frequencies.size(); ++i)
    EXPECT_EQ(table.inverse_frequencies()[i], frequencies[i]) << i;

  const std::vector<int64_t> positions = kernels.ints(is_released ? "rope.released.positions" : "rope.positions");
  std::vector<float> all_cos;
  std::vector<float> all_sin;
  std::vector<float> cos(table.pairs());
  std::vector<float> sin(table.pairs());
  for (const int64_t position : positions) {
    table.angles(position, cos, sin);
    all_cos.insert(all_cos.end(), cos.begin(), cos.end());
    all_sin.insert(all_sin.end(), sin.begin(), sin.end());
  }
  expect_near_all(all_cos, kernels.floats(values + ".cos"), 2e-6F);
  expect_near_all(all_sin, kernels.floats(values + ".sin"), 2e-6F);
}

INSTANTIATE_TEST_SUITE_P(All, RopeGolden,
                         testing::Values(RopeCase{"rope.released.window", 64, 10000, std::nullopt},
                                         RopeCase{"rope.released.yarn", 64, 160000, YarnConfig{16, 32, 1, 65536}},
                                         RopeCase{"rope.this_config.window", 16, 10000, std::nullopt},
                                         RopeCase{"rope.this_config.yarn", 16, 160000, YarnConfig{16, 32, 1, 64}}));

TEST(HyperConnection, MixIsTheReference) {
  const golden::Case kernels("kernels");
  const std::vector<float> products = kernels.floats("hc.mixes");
  const std::vector<float> scale = kernels.floats("hc.scale");
  const std::vector<float> base = kernels.floats("hc.base");
  const HyperConnectionConfig config{4, 64, 20, 1e-6F, 1e-20F};
  std::vector<float> pre(size_t{6} * 4);
  std::vector<float> post(size_t{6} * 4);
  std::vector<float> comb(size_t{6} * 16);
  for (size_t row = 0; row < 6; ++row) {
    split_mix(config, std::span(products).subspan(row * 24, 24), scale.data(), base.data(),
              std::span(pre).subspan(row * 4, 4), std::span(post).subspan(row * 4, 4),
              std::span(comb).subspan(row * 16, 16));
  }
  expect_near_all(pre, kernels.floats("hc.pre"), 1e-5F);
  expect_near_all(post, kernels.floats("hc.post"), 1e-5F);
  expect_near_all(comb, kernels.floats("hc.comb"), 1e-5F);
}

TEST(HyperConnection, MixCollapseAndExpandWorkOnStreams) {
  const golden::Case kernels("kernels");
  std::vector<float> stream = kernels.floats("hc.stream");
  const std::vector<float> fn = kernels.floats("hc.fn");
  const std::vector<float> scale = kernels.floats("hc.scale");
  const std::vector<float> base = kernels.floats("hc.base");
  const std::vector<float> sub = kernels.floats("hc.sub");
  const HyperConnectionConfig config{4, 64, 20, 1e-6F, 1e-20F};
  ThreadPool pool(2);
  const Math math({pool, kernels::reference_kernels()}, kOfficialNumerics);
  Arena arena;
  ForwardPass pass;
  pass.arena = &arena;
  pass.rows = 6;
  pass.stream = Span2d<float>(stream.data(), 6, 256);
  const HyperConnectionWeights weights{
      {MatrixFormat::kFloat32, 24, 256, reinterpret_cast<const std::byte*>(fn.data()), nullptr},
      base.data(),
      scale.data()};
  const HyperConnectionMix mix = hyper_connection_mix(math, config, weights, pass);
  expect_near_all({mix.pre.data, 24}, kernels.floats("hc.pre"), 1e-5F);
  expect_near_all({mix.comb.data, 96}, kernels.floats("hc.comb"), 1e-5F);
  std::vector<float> collapsed(size_t{6} * 64);
  collapse_streams(math, config, pass.stream, mix.pre, Span2d<float>(collapsed.data(), 6, 64));
  expect_one_step(collapsed, kernels.floats("hc.collapsed"));
  expand_streams(math, config, mix, Span2d<const float>(sub.data(), 6, 64), pass.stream);
  expect_one_step(stream, kernels.floats("hc.expanded"));
}

/// More rows than a thread takes at once, and fewer.
TEST(HyperConnection, CrossingFromOneSubBlockToTheNextHasTheBitsOfTheSingleSteps) {
  const golden::Case kernels("kernels");
  const std::vector<float> golden_stream = kernels.floats("hc.stream");
  const std::vector<float> fn = kernels.floats("hc.fn");
  const std::vector<float> scale = kernels.floats("hc.scale");
  const std::vector<float> base = kernels.floats("hc.base");
  const HyperConnectionConfig config{4, 64, 20, 1e-6F, 1e-20F};
  const HyperConnectionWeights weights{
      {MatrixFormat::kFloat32, 24, 256, reinterpret_cast<const std::byte*>(fn.data()), nullptr},
      base.data(),
      scale.data()};
  ThreadPool pool(2);
  for (const kernels::KernelTable* table : kernels::available_kernels()) {
    const Math math({pool, *table}, kOfficialNumerics);
    for (const size_t rows : {1U, 7U, 13U}) {
      std::vector<float> stream(rows * 256);
      for (size_t i = 0; i < stream.size(); ++i)
        stream[i] = golden_stream[i % golden_stream.size()];
      std::vector<float> crossed = stream;
      std::vector<float> pending(rows * 4, 0.25F);
      std::vector<float> x(rows * 64);
      std::vector<float> expected_x(rows * 64);
      Arena arena;
      ForwardPass pass;
      pass.arena = &arena;
      pass.rows = rows;
      pass.stream = Span2d<float>(stream.data(), rows, 256);
      pass.pre_mix = Span2d<float>(pending.data(), rows, 4);
      const HyperConnectionMix first = hyper_connection_mix(math, config, weights, pass);
      const Span2d<const float> y(golden_stream.data(), rows, 64);
      expand_streams(math, config, first, y, pass.stream);
      const HyperConnectionMix second = hyper_connection_mix(math, config, weights, pass);
      collapse_streams(math, config, pass.stream, first.pre, Span2d<float>(expected_x.data(), rows, 64));

      pass.stream = Span2d<float>(crossed.data(), rows, 256);
      const HyperConnectionMix entered = make_mix(arena, rows, config.streams);
      cross_streams(
          math, config, pass,
          {.left = &first, .y = y, .weights = &weights, .entered = &entered, .x = Span2d<float>(x.data(), rows, 64)});
      EXPECT_EQ(crossed, stream) << table->name << ", rows " << rows;
      EXPECT_EQ(x, expected_x) << table->name << ", rows " << rows;
      EXPECT_EQ(pending, std::vector<float>(first.pre.data, first.pre.data + rows * 4));
      for (const auto mix : {&HyperConnectionMix::pre, &HyperConnectionMix::post, &HyperConnectionMix::comb}) {
        const Span2d<float>& expected = second.*mix;
        EXPECT_EQ(std::vector<float>((entered.*mix).data, (entered.*mix).data + rows * expected.cols),
                  std::vector<float>(expected.data, expected.data + rows * expected.cols));
      }
    }
  }
}

TEST(Compressor, PoolsPairsAndNormalises) {
  const golden::Case kernels("kernels");
  const std::vector<float> kv = kernels.floats("compress.kv");
  const std::vector<float> gate = kernels.floats("compress.gate");
  std::vector<float> pooled(size_t{3} * 64);
  for (size_t group = 0; group < 3; ++group) {
    std::vector<float> tokens[2];
    for (size_t t = 0; t < 2; ++t) {
      const auto at = static_cast<int64_t>((2 * group + t) * 64);
      tokens[t].assign(kv.begin() + at, kv.begin() + at + 64);
      tokens[t].insert(tokens[t].end(), gate.begin() + at, gate.begin() + at + 64);
    }
    pool_pair(tokens[0], tokens[1], std::span(pooled).subspan(group * 64, 64));
  }
  expect_near_all(pooled, kernels.floats("compress.pooled_f32"), 1e-6F);
}

TEST(CandidatePool, KeptBlocksAreTheReference) {
  const golden::Case kernels("kernels");
  const std::vector<int64_t> params = kernels.ints("candidates.params");
  const std::vector<int64_t> visible = kernels.ints("candidates.visible");
  const std::vector<float> scores = kernels.floats("candidates.score");
  const std::vector<int64_t> mask = kernels.ints("candidates.mask");
  const CandidatePoolConfig config{params[1], params[0]};
  std::vector<uint32_t> blocks(static_cast<size_t>(params[0]));
  std::vector<float> scratch;
  for (size_t row = 0; row < visible.size(); ++row) {
    const auto count = static_cast<size_t>(visible[row]);
    const std::span<const float> row_scores = std::span(scores).subspan(row * 30, count);
    const int32_t kept = choose_candidate_blocks(config, row_scores, blocks, scratch);
    std::vector<int64_t> actual(count, kept < 0 ? 1 : 0);
    for (int32_t i = 0; i < kept; ++i) {
      for (int64_t e = 0; e < params[1]; ++e) {
        const auto entry = static_cast<size_t>(static_cast<int64_t>(blocks[static_cast<size_t>(i)]) * params[1] + e);
        if (entry < count) actual[entry] = 1;
      }
    }
    const std::vector<int64_t> expected(mask.begin() + static_cast<int64_t>(row * 30),
                                        mask.begin() + static_cast<int64_t>(row * 30 + count));
    EXPECT_EQ(actual, expected) << "row " << row;
  }
}

TEST(CandidatePool, NewestPartialBlockIsAlwaysIn) {
  const CandidatePoolConfig config{4, 2};
  std::vector<float> scores(21, 1.0F);  // six blocks, the last of one entry
  scores[20] = -5.0F;
  std::vector<uint32_t> blocks(2);
  std::vector<float> scratch;
  ASSERT_EQ(choose_candidate_blocks(config, scores, blocks, scratch), 2);
  EXPECT_EQ(blocks, (std::vector<uint32_t>{0, 5}));  // a tie among the rest goes to the lowest
}

TEST(CandidatePool, ANaNIsNoMaximumWhereverItStands) {
  const CandidatePoolConfig config{4, 3};
  std::vector<float> scores(21, 1.0F);  // six blocks
  scores[4] = NAN;                      // of block 1, at its beginning, before its maximum
  scores[5] = 3;
  scores[10] = 2;  // of block 2, before a NaN
  scores[11] = NAN;
  std::fill(scores.begin() + 12, scores.begin() + 16, NAN);
  std::vector<uint32_t> blocks(3);
  std::vector<float> scratch;
  ASSERT_EQ(choose_candidate_blocks(config, scores, blocks, scratch), 3);
  EXPECT_EQ(blocks, (std::vector<uint32_t>{1, 2, 5}));

  std::fill(scores.begin(), scores.end(), NAN);
  ASSERT_EQ(choose_candidate_blocks(config, scores, blocks, scratch), 1);
  EXPECT_EQ(blocks.front(), 5U);
}

TEST(Router, ChoosesAndWeighsLikeTheReference) {
  const golden::Case kernels("kernels");
  const std::vector<float> x = kernels.floats("router.x");
  const std::vector<float> w = kernels.floats("router.w");
  const std::vector<float> bias = kernels.floats("router.bias");
  const std::vector<float> bias_vl = kernels.floats("router.bias_vl");
  const std::vector<int64_t> is_image = kernels.ints("router.is_image");
  const std::vector<int64_t> expected_idx = kernels.ints("router.idx");
  const std::vector<float> expected_weights = kernels.floats("router.weights");
  const std::vector<float> expected_scores = kernels.floats("router.scores");
  const MoeConfig config{3, true, 1.5F, 0};
  for (size_t row = 0; row < is_image.size(); ++row) {
    std::vector<float> scores(10);
    for (size_t e = 0; e < 10; ++e) {
      for (size_t i = 0; i < 64; ++i)
        scores[e] += w[e * 64 + i] * x[row * 64 + i];
    }
    router_scores(scores);
    expect_near_all(scores, std::span(expected_scores).subspan(row * 10, 10), 1e-5F);
    std::vector<int32_t> chosen(3);
    std::vector<float> weights(3);
    (void)route_row(config, scores, is_image[row] != 0 ? bias_vl.data() : bias.data(), chosen, weights);
    for (size_t i = 0; i < 3; ++i) {
      const auto found = std::find(expected_idx.begin() + static_cast<int64_t>(row * 3),
                                   expected_idx.begin() + static_cast<int64_t>(row * 3 + 3), chosen[i]);
      ASSERT_NE(found, expected_idx.begin() + static_cast<int64_t>(row * 3 + 3)) << "row " << row;
      EXPECT_NEAR(weights[i], expected_weights[static_cast<size_t>(found - expected_idx.begin())], 1e-5F);
    }
  }
}

TEST(Router, EqualScoresGoToTheLowestExpert) {
  const std::vector<float> scores(8, 0.5F);
  const std::vector<float> bias(8, 0.0F);
  std::vector<int32_t> chosen(3);
  std::vector<float> weights(3);
  EXPECT_EQ(route_row({3, true, 1.5F, 0}, scores, bias.data(), chosen, weights), 0.0F);
  EXPECT_EQ(chosen, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_NEAR(weights[0], 0.5F, 1e-6F);  // 0.5 / 1.5 * 1.5
}

/// Below every number, -inf too, whether it is of a score or of a bias.
TEST(Router, NaNIsChosenLastAndTheLowestExpertFirst) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr size_t kExperts = 300;
  std::vector<float> scores(kExperts);
  for (size_t i = 0; i < kExperts; ++i)
    scores[i] = i % 3 == 0 ? NAN : static_cast<float>(i * 7 % 11);
  std::vector<float> bias(kExperts);
  bias[17] = NAN;
  bias[20] = -kInfinity;
  bias[25] = kInfinity;
  std::vector<int32_t> expected(kExperts);
  std::iota(expected.begin(), expected.end(), 0);
  const auto is_nan = [&](int32_t i) { return i % 3 == 0 || i == 17; };
  std::ranges::stable_sort(expected, [&](int32_t a, int32_t b) {
    if (is_nan(a) || is_nan(b)) return !is_nan(a);
    const auto biased = [&](int32_t i) { return scores[static_cast<size_t>(i)] + bias[static_cast<size_t>(i)]; };
    return biased(a) > biased(b);
  });
  for (const size_t k : {size_t{6}, size_t{199}, size_t{200}, kExperts}) {
    std::vector<int32_t> chosen(k);
    std::vector<float> weights(k);
    (void)route_row({k, false, 1, 0}, scores, bias.data(), chosen, weights);
    EXPECT_TRUE(std::equal(chosen.begin(), chosen.end(), expected.begin())) << k;
    EXPECT_EQ(std::isnan(weights.back()), k >= 200) << k;
  }
}

TEST(Router, ANaNThatIsChosenIsInTheWeights) {
  const std::vector<float> scores = {NAN, 1, NAN, NAN};
  const std::vector<float> bias(4);
  std::vector<int32_t> chosen(2);
  std::vector<float> weights(2);
  (void)route_row({2, true, 1, 0}, scores, bias.data(), chosen, weights);
  EXPECT_EQ(chosen, (std::vector<int32_t>{1, 0}));
  EXPECT_TRUE(std::isnan(weights[0]) && std::isnan(weights[1]));
}

TEST(Engram, GateIsTheReference) {
  const golden::Case kernels("kernels");
  const std::vector<float> h = kernels.floats("engram_gate.h");
  const std::vector<float> key = kernels.floats("engram_gate.key");
  const std::vector<float> value = kernels.floats("engram_gate.value");
  const std::vector<float> q = kernels.floats("engram_gate.q_weight");
  const std::vector<float> k = kernels.floats("engram_gate.k_weight");
  std::vector<Bf16> q_weight(q.size());
  std::vector<Bf16> k_weight(k.size());
  std::ranges::transform(q, q_weight.begin(), to_bf16);
  std::ranges::transform(k, k_weight.begin(), to_bf16);
  std::vector<float> dots;
  std::vector<float> gates;
  std::vector<float> out;
  for (size_t row = 0; row < 3; ++row) {
    for (size_t j = 0; j < 4; ++j) {
      const size_t at = (row * 4 + j) * 64;
      dots.push_back(engram_dot(std::span(h).subspan(at, 64), std::span(key).subspan(at, 64), &q_weight[j * 64],
                                &k_weight[j * 64], 1e-20F));
      gates.push_back(engram_gate(dots.back()));
      for (size_t i = 0; i < 64; ++i)
        out.push_back(h[at + i] + gates.back() * value[row * 64 + i]);
    }
  }
  expect_near_all(dots, kernels.floats("engram_gate.dot"), 1e-5F);
  expect_near_all(gates, kernels.floats("engram_gate.gate"), 1e-5F);
  expect_one_step(out, kernels.floats("engram_gate.out"));
}

void expect_hash_case(const std::string& name, const EngramConfig& config, std::vector<int32_t> token_map) {
  const golden::Case expected(name);
  const EngramHash hash(config, std::move(token_map));
  std::vector<int64_t> primes;
  std::vector<int64_t> offsets;
  std::vector<int64_t> multipliers;
  for (size_t slot = 0; slot < config.layer_ids.size(); ++slot) {
    primes.insert(primes.end(), hash.primes(slot).begin(), hash.primes(slot).end());
    offsets.insert(offsets.end(), hash.offsets(slot).begin(), hash.offsets(slot).end());
    multipliers.insert(multipliers.end(), hash.multipliers(slot).begin(), hash.multipliers(slot).end());
  }
  EXPECT_EQ(primes, expected.ints("primes"));
  EXPECT_EQ(offsets, expected.ints("offsets"));
  EXPECT_EQ(multipliers, expected.ints("multipliers"));
  const std::vector<int64_t> wide = expected.ints("compressed_ids");
  const std::vector<int32_t> compressed(wide.begin(), wide.end());
  std::vector<int64_t> ids;
  std::vector<int64_t> row(hash.columns());
  for (size_t position = 0; position < compressed.size(); ++position) {
    for (size_t slot = 0; slot < config.layer_ids.size(); ++slot) {
      hash.rows_of_compressed(slot, compressed, static_cast<int64_t>(position), row);
      ids.insert(ids.end(), row.begin(), row.end());
    }
  }
  EXPECT_EQ(ids, expected.ints("hash_ids"));
}

TEST(EngramHash, GoldenConfigIsExact) {
  expect_hash_case("engram_this_config", *load_config(golden::folder() / "ckpt" / "config.json").engram,
                   golden::token_map());
}

TEST(EngramHash, ReleasedConfigIsExact) {
  const EngramConfig released{{1, 14}, {384006168, 384016682}, 4, 16000000, 8, 256, 2, 99092};
  std::vector<int32_t> identity(99092);  // stands for the real map: same number of ids, pad id 2 maps to 2
  for (size_t i = 0; i < identity.size(); ++i)
    identity[i] = static_cast<int32_t>(i);
  expect_hash_case("engram_released", released, identity);
}

TEST(EngramHash, ImagePositionsBlockEverythingBehindThem) {
  const EngramConfig config = *load_config(golden::folder() / "ckpt" / "config.json").engram;
  const EngramHash hash(config, golden::token_map());
  const std::vector<InputToken> with_image{{10, false}, {505, true}, {11, false}};
  const std::vector<InputToken> alone{{11, false}};
  std::vector<int64_t> a(hash.columns());
  std::vector<int64_t> b(hash.columns());
  hash.rows(0, with_image, 2, a);
  hash.rows(0, alone, 0, b);
  EXPECT_EQ(a, b);
}

TEST(EngramHash, ForeignTokenizerIsRefused) {
  const EngramConfig config = *load_config(golden::folder() / "ckpt" / "config.json").engram;
  EXPECT_THROW(EngramHash(config, std::vector<int32_t>{0, 1, 2}), Error);
}

}  // namespace
}  // namespace tidepool
