#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/buffer.h"
#include "formats/bf16.h"
#include "kernels/kernel_table.h"
#include "kernels/kernels_test_support.h"

namespace tidepool::kernels {
namespace {

/// One head with random queries, keys and values that are exact in bfloat16.
struct Head {
  Head(size_t query_count, size_t key_count, size_t head_width, uint32_t seed)
      : queries(query_count), count(key_count), width(head_width), stride(head_width + 5) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::vector<float>* all : {&q, &keys, &values}) {
      all->resize((all == &q ? queries : count) * stride);
      for (float& value : *all)
        value = to_float(to_bf16(normal(random)));
    }
  }

  /// By `table`, the keys packed in parts of `tiles`, queries [first, first + some).
  [[nodiscard]] std::vector<float> run(const KernelTable& table, size_t tiles, size_t first, size_t some) const {
    const size_t bytes = 2 * width * dense_keys_padded(count);
    Buffer<std::byte> packed_keys(bytes);
    Buffer<std::byte> packed_values(bytes);
    const size_t all_tiles = dense_keys_padded(count) / kDenseKeys;
    for (size_t tile = 0; tile < all_tiles; tile += tiles) {
      table.pack_dense({.keys = keys.data(),
                        .values = values.data(),
                        .stride = stride,
                        .count = count,
                        .width = width,
                        .tile_begin = tile,
                        .tile_end = std::min(tile + tiles, all_tiles),
                        .packed_keys = packed_keys.data(),
                        .packed_values = packed_values.data()});
    }
    std::vector<float> out(q.begin() + static_cast<int64_t>(first * stride),
                           q.begin() + static_cast<int64_t>((first + some) * stride));
    Buffer<float> scratch(dense_scratch_floats(count, width));
    table.dense_attention({.q = out.data(),
                           .q_stride = stride,
                           .queries = some,
                           .keys = packed_keys.data(),
                           .values = packed_values.data(),
                           .count = count,
                           .width = width,
                           .scale = scale(),
                           .out = out.data(),
                           .out_stride = stride,
                           .scratch = scratch.data()});
    return out;
  }

  [[nodiscard]] float scale() const { return 1.0F / std::sqrt(static_cast<float>(width)); }

  size_t queries;
  size_t count;
  size_t width;
  size_t stride;
  std::vector<float> q;
  std::vector<float> keys;
  std::vector<float> values;
};

/// The definition, in binary64 but for the terms' rounding.
void expect_as_defined(const Head& head, const std::vector<float>& out) {
  for (size_t i = 0; i < head.queries; ++i) {
    std::vector<double> scores(head.count, 0);
    for (size_t j = 0; j < head.count; ++j) {
      for (size_t c = 0; c < head.width; ++c)
        scores[j] += static_cast<double>(head.q[i * head.stride + c]) * head.keys[j * head.stride + c];
    }
    const double most = *std::ranges::max_element(scores);
    double sum = 0;
    std::vector<double> result(head.width, 0);
    std::vector<double> magnitude(head.width, 0);
    for (size_t j = 0; j < head.count; ++j) {
      const double term = std::exp(static_cast<double>(head.scale()) * (scores[j] - most));
      const double rounded = to_float(to_bf16(static_cast<float>(term)));
      sum += term;
      for (size_t c = 0; c < head.width; ++c) {
        const double value = head.values[j * head.stride + c];
        result[c] += rounded * value;
        magnitude[c] += term * std::abs(value);
      }
    }
    for (size_t c = 0; c < head.width; ++c) {
      // As if every term that lies near the middle between two bfloat16, one in 16 say, had been rounded to the other
      // one, 2^-8 of it away.
      const double allowed = magnitude[c] / sum * std::pow(2.0, -8) / 16 + 1e-6;
      EXPECT_NEAR(out[i * head.stride + c], result[c] / sum, allowed) << i << " " << c;
    }
    for (size_t c = head.width; c < head.stride; ++c)
      EXPECT_EQ(out[i * head.stride + c], head.q[i * head.stride + c]) << "written beside the head";
  }
}

std::vector<const KernelTable*> tables_with_dense_attention() {
  std::vector<const KernelTable*> tables;
  std::ranges::copy_if(available_kernels(), std::back_inserter(tables),
                       [](const KernelTable* table) { return table->dense_attention != nullptr; });
  return tables;
}

TEST(DenseAttention, IsAsDefinedOverRaggedShapes) {
  for (const KernelTable* table : tables_with_dense_attention()) {
    for (const size_t count : {1U, 2U, 17U, 31U, 32U, 33U, 160U, 700U}) {
      for (const size_t width : {16U, 32U, 48U, 64U, 80U, 128U}) {
        for (const size_t queries : {1U, 7U, 12U, 24U}) {
          SCOPED_TRACE(::testing::Message()
                       << table->name << ": " << queries << " queries, " << count << " x " << width);
          const Head head(queries, count, width, static_cast<uint32_t>(count * width + queries));
          expect_as_defined(head, head.run(*table, 1000, 0, queries));
        }
      }
    }
  }
}

/// Neither the queries beside one nor the parts in which keys are packed change a bit.
TEST(DenseAttention, QueriesAndPartsDoNotTouchEachOther) {
  for (const KernelTable* table : tables_with_dense_attention()) {
    const Head head(kDenseQueries, 333, 64, 7);
    const std::vector<float> together = head.run(*table, 1000, 0, kDenseQueries);
    EXPECT_EQ(head.run(*table, 3, 0, kDenseQueries), together) << table->name;
    for (size_t i = 0; i < kDenseQueries; ++i) {
      const std::vector<float> alone = head.run(*table, 1, i, 1);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + static_cast<int64_t>(i * head.stride)))
          << table->name << " " << i;
    }
  }
}

/// A query that holds no number has no result, and is no other one's; a subnormal value counts for nothing.
TEST(DenseAttention, ASpecialValueInAQueryIsInItsOwnResult) {
  for (const KernelTable* table : tables_with_dense_attention()) {
    const Head ordinary(19, 70, 48, 11);
    const std::vector<float> without = ordinary.run(*table, 1000, 0, 19);
    for (const float special : testing::kSpecialValues) {
      for (const size_t query : {0U, 11U, 18U}) {
        SCOPED_TRACE(::testing::Message() << table->name << ": " << special << " in query " << query);
        Head head = ordinary;
        head.q[query * head.stride + 47] = special;
        const std::vector<float> out = head.run(*table, 1000, 0, 19);
        for (size_t i = 0; i < out.size(); ++i) {
          if (i % head.stride >= head.width) continue;
          if (i / head.stride == query) {
            ASSERT_EQ(std::isfinite(out[i]), std::isfinite(special)) << i;
          } else {
            ASSERT_TRUE(testing::same_bits(out[i], without[i])) << i;
          }
        }
        if (std::isfinite(special)) expect_as_defined(head, out);
      }
    }
  }
}

/// A key that holds no number leaves no result to the queries it matters to; a value takes only its own column.
TEST(DenseAttention, ASpecialValueInAKeyOrAValueIsAsTheDefinitionHasIt) {
  for (const KernelTable* table : tables_with_dense_attention()) {
    for (const float special : testing::kSpecialValues) {
      for (const size_t key : {0U, 33U, 69U}) {
        SCOPED_TRACE(::testing::Message() << table->name << ": " << special << " in key " << key);
        const Head ordinary(13, 70, 48, 12);
        Head head = ordinary;
        head.keys[key * head.stride + 5] = special;
        const std::vector<float> by_key = head.run(*table, 1, 0, 13);
        head = ordinary;
        head.values[key * head.stride + 5] = special;
        const std::vector<float> by_value = head.run(*table, 1, 0, 13);
        for (size_t i = 0; i < 13 * head.stride; ++i) {
          if (i % head.stride >= head.width) continue;
          // An infinite score is that of every number or of none, as the query's sign has it.
          const float score = special * head.q[i / head.stride * head.stride + 5];
          ASSERT_EQ(std::isnan(by_key[i]), std::isnan(score) || score > 1e30F) << i;
          ASSERT_FALSE(std::isinf(by_key[i])) << i;
          const bool is_its_column = i % head.stride == 5;
          if (std::isfinite(special) || !is_its_column) {
            ASSERT_TRUE(std::isfinite(by_value[i])) << i;
          } else {
            ASSERT_TRUE(testing::same_bits(by_value[i], special)) << i;
          }
        }
        if (std::isfinite(special)) expect_as_defined(head, by_value);
      }
    }
  }
}

TEST(DenseAttention, NoQueriesWriteNothing) {
  for (const KernelTable* table : tables_with_dense_attention())
    EXPECT_TRUE(Head(1, 40, 32, 13).run(*table, 1, 0, 0).empty());
}

/// Scores far apart: what is far below the largest gives nothing, and nothing overflows.
TEST(DenseAttention, LargeScoresGiveTheKeyThatFitsBest) {
  for (const KernelTable* table : tables_with_dense_attention()) {
    Head head(3, 50, 16, 9);
    for (float& value : head.q)
      value *= 1024;
    for (float& value : head.keys)
      value *= 1024;
    expect_as_defined(head, head.run(*table, 1, 0, 3));
  }
}

}  // namespace
}  // namespace tidepool::kernels
