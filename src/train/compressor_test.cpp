#include "train/compressor.h"

#include <gtest/gtest.h>

#include "model/compressor.h"
#include "train/gradient_check.h"

namespace tidepool {
namespace {

constexpr size_t kEntryWidth = 5;

/// Samples of 5, 1 and 4 tokens: 2, 0 and 2 pairs.
TokenBatch make_pairs_batch() {
  TokenBatch batch;
  batch.segments = {{.begin = 0, .count = 5}, {.begin = 5, .count = 1}, {.begin = 6, .count = 4}};
  return batch;
}

TEST(PoolGroups, GradientsAreThoseOfFiniteDifferences) {
  TestRandom random(1);
  for (const size_t ratio : {size_t{2}, size_t{3}}) {
    const BatchRows rows = encoder_rows(make_pairs_batch());
    const EntryRows entries = entry_rows(make_pairs_batch(), ratio);
    Leaf<double> kv(random, rows.rows, kEntryWidth);
    Leaf<double> gate(random, rows.rows, kEntryWidth, 2);
    expect_gradients({.run =
                          [&](Tape<double>& tape) {
                            return std::vector{pool_groups<double>(tape, {kv, gate, &rows, &entries})};
                          },
                      .inputs = {{"kv", kv}, {"gate", gate}},
                      .entries = 100});
  }
}

TEST(PoolGroups, PairsAreTheEnginesAndEndWithTheirSample) {
  TestRandom random(2);
  const BatchRows rows = encoder_rows(make_pairs_batch());
  const EntryRows entries = entry_rows(make_pairs_batch(), 2);
  Leaf<float> kv(random, rows.rows, kEntryWidth);
  Leaf<float> gate(random, rows.rows, kEntryWidth, 2);
  ThreadPool pool(2);
  Tape<float> tape(pool, Tape<float>::Mode::kForward);
  const Value<float> latent = pool_groups<float>(tape, {kv, gate, &rows, &entries});
  constexpr std::array<size_t, 4> kFirstRows = {0, 2, 6, 8};
  ASSERT_EQ(latent.rows(), kFirstRows.size());
  for (size_t j = 0; j < kFirstRows.size(); ++j) {
    std::array<std::vector<float>, 2> inputs;
    for (size_t i = 0; i < 2; ++i) {
      const std::span<float> values = kv.value().data.row(kFirstRows[j] + i);
      const std::span<float> gates = gate.value().data.row(kFirstRows[j] + i);
      inputs[i].assign(values.begin(), values.end());
      inputs[i].insert(inputs[i].end(), gates.begin(), gates.end());
    }
    std::vector<float> expected(kEntryWidth);
    pool_pair(inputs[0], inputs[1], expected);
    EXPECT_TRUE(std::ranges::equal(latent.data.row(j), expected)) << j;
  }
}

}  // namespace
}  // namespace tidepool
