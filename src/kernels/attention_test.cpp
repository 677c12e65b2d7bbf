#include <algorithm>
#include <limits>
#include <utility>

#include "formats/row_format.h"
#include "kernels/kernels_test_support.h"

namespace tidepool::kernels {
namespace {

using testing::Random;
using testing::same_bits;

constexpr RowFormat kRowFormats[] = {RowFormat::kFp8Block32, RowFormat::kFp4Block16, RowFormat::kFp4Block32,
                                     RowFormat::kFloat32};

/// Packed rows of one format, each with its own memory, so that reading past one is seen by AddressSanitizer.
struct PackedRows {
  RowFormat format;
  size_t width;
  std::vector<std::vector<std::byte>> storage;
  std::vector<const std::byte*> pointers;

  PackedRows(Random& random, RowFormat row_format, size_t row_width, size_t count)
      : format(row_format), width(row_width), storage(count) {
    for (std::vector<std::byte>& row : storage) {
      row.resize(row_bytes(format, width));
      pack_row(format, random.values(width, 3), row);
      pointers.push_back(row.data());
    }
  }
  [[nodiscard]] RowList list() const { return {.rows = pointers.data(), .count = pointers.size(), .format = format}; }
  [[nodiscard]] std::vector<float> values(size_t row) const {
    std::vector<float> result(width);
    unpack_row(format, storage[row], result);
    return result;
  }
};

/// Exact in bfloat16, as the official numerics have it.
struct Query {
  size_t heads;
  size_t width;
  std::vector<float> q;
  std::vector<float> sink;
  float scale;

  Query(Random& random, size_t head_count, size_t row_width)
      : heads(head_count),
        width(row_width),
        q(random.values(heads * width, 2)),
        sink(random.values(heads, 4)),
        scale(1 / std::sqrt(static_cast<float>(row_width))) {
    reference_kernels().round_bf16(q.data(), q.size());
  }
};

std::vector<float> attend(const KernelTable& table, const Query& query, RowList window, RowList global,
                          bool round_probabilities) {
  std::vector<float> out(query.heads * query.width, 99.0F);
  std::vector<float> scratch(attention_scratch_floats(query.heads, query.width));
  table.sparse_attention({.q = query.q.data(),
                          .heads = query.heads,
                          .width = query.width,
                          .window = window,
                          .global = global,
                          .sink = query.sink.data(),
                          .scale = query.scale,
                          .round_probabilities = round_probabilities,
                          .out = out.data(),
                          .scratch = scratch.data()});
  return out;
}

class Attention : public testing::EveryTable {};
TIDEPOOL_FOR_EVERY_TABLE(Attention);

/// The formula in binary64 over all rows at once.
std::vector<float> attend_exactly(const Query& query, const PackedRows& window, const PackedRows& global) {
  std::vector<std::vector<float>> rows;
  for (size_t j = 0; j < window.storage.size(); ++j)
    rows.push_back(window.values(j));
  for (size_t j = 0; j < global.storage.size(); ++j)
    rows.push_back(global.values(j));
  std::vector<float> out(query.heads * query.width);
  for (size_t h = 0; h < query.heads; ++h) {
    double denominator = std::exp(static_cast<double>(query.sink[h]));
    std::vector<double> value(query.width);
    for (const std::vector<float>& row : rows) {
      double score = 0;
      for (size_t i = 0; i < query.width; ++i) {
        score += static_cast<double>(query.q[h * query.width + i]) * static_cast<double>(row[i]);
      }
      const double p = std::exp(score * static_cast<double>(query.scale));
      denominator += p;
      for (size_t i = 0; i < query.width; ++i)
        value[i] += p * static_cast<double>(row[i]);
    }
    for (size_t i = 0; i < query.width; ++i)
      out[h * query.width + i] = static_cast<float>(value[i] / denominator);
  }
  return out;
}

TEST_P(Attention, IsTheFormulaForEveryFormatAndCount) {
  Random random(1);
  for (const auto& [heads, width] : {std::pair<size_t, size_t>{1, 64}, {3, 64}, {5, 512}, {64, 64}, {2, 32}}) {
    for (const size_t count : {0U, 1U, 15U, 16U, 17U, 64U, 65U, 200U}) {
      const RowFormat window_format = kRowFormats[random.below(4)];
      const RowFormat global_format = kRowFormats[random.below(4)];
      for (const auto& [in_window, in_global] :
           {std::pair<size_t, size_t>{count, 0}, {0, count}, {count, 1}, {7, count}}) {
        SCOPED_TRACE(::testing::Message()
                     << heads << " heads, width " << width << ", " << in_window << " + " << in_global << " rows");
        const Query query(random, heads, width);
        const PackedRows window(random, window_format, width, in_window);
        const PackedRows global(random, global_format, width, in_global);
        const std::vector<float> expected = attend_exactly(query, window, global);
        const std::vector<float> actual = attend(table(), query, window.list(), global.list(), false);
        // Scores below about 6 sqrt(width) are off by width * 2^-24 times that at worst, 2e-5 here in practice, which p
        // and so out inherit; out is an average of values up to 3.
        for (size_t i = 0; i < expected.size(); ++i)
          ASSERT_NEAR(actual[i], expected[i], 6e-5F) << i;
      }
    }
  }
}

TEST_P(Attention, AgreesWithTheReferenceOverAThousandRowsAndWithRoundedProbabilities) {
  Random random(2);
  for (const bool round : {false, true}) {
    const Query query(random, 7, 512);
    const PackedRows window(random, RowFormat::kFp8Block32, 512, 128);
    const PackedRows global(random, RowFormat::kFp4Block16, 512, 1000);
    const std::vector<float> expected = attend(reference_kernels(), query, window.list(), global.list(), round);
    const std::vector<float> actual = attend(table(), query, window.list(), global.list(), round);
    // A probability next to a rounding boundary may fall to the other side: one in some thousands by 2^-9 of itself.
    const float tolerance = round ? 1e-4F : 2e-5F;
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(actual[i], expected[i], tolerance) << i;
  }
}

/// Formats of window and global rows in every combination, at widths that tables have special code for and at others.
TEST_P(Attention, AgreesWithTheReferenceForEveryPairOfFormatsWithRoundedProbabilities) {
  Random random(8);
  for (const RowFormat window_format : kRowFormats) {
    for (const RowFormat global_format : kRowFormats) {
      for (const auto& [heads, width] : {std::pair<size_t, size_t>{1, 64}, {4, 128}, {6, 192}, {17, 32}}) {
        for (const auto& [in_window, in_global] : {std::pair<size_t, size_t>{1, 0}, {0, 3}, {31, 34}, {63, 70}}) {
          SCOPED_TRACE(::testing::Message()
                       << heads << " heads, width " << width << ", " << in_window << " + " << in_global << " rows of "
                       << static_cast<int>(window_format) << " and " << static_cast<int>(global_format));
          const Query query(random, heads, width);
          const PackedRows window(random, window_format, width, in_window);
          const PackedRows global(random, global_format, width, in_global);
          const std::vector<float> expected = attend(reference_kernels(), query, window.list(), global.list(), true);
          const std::vector<float> actual = attend(table(), query, window.list(), global.list(), true);
          // As above: a probability may round to the other side, by 2^-9 of one of few rows with values up to 3.
          for (size_t i = 0; i < expected.size(); ++i)
            ASSERT_NEAR(actual[i], expected[i], 6e-3F) << i;
        }
      }
    }
  }
}

/// One row alone has probability 1 / (1 + e^(sink - s)), so out is the row itself where the sink is far below.
TEST_P(Attention, OneRowComesOutAsItIsInEveryColumn) {
  Random random(9);
  for (const RowFormat format : kRowFormats) {
    Query query(random, 3, 512);
    query.sink.assign(3, -1e4F);
    const PackedRows window(random, format, 512, 1);
    const std::vector<float> expected = window.values(0);
    const std::vector<float> actual = attend(table(), query, window.list(), {}, true);
    for (size_t i = 0; i < actual.size(); ++i)
      ASSERT_EQ(actual[i], expected[i % 512]) << "format " << static_cast<int>(format) << " at " << i;
  }
}

TEST_P(Attention, QueriesAndScalesThatBfloat16DoesNotHoldLoseNothing) {
  Random random(10);
  Query query(random, 5, 128);
  query.q = random.values(query.q.size(), 2);
  PackedRows window(random, RowFormat::kFp8Block32, 128, 40);
  const PackedRows global(random, RowFormat::kFp4Block32, 128, 40);
  for (const bool has_tiny_scale : {false, true}) {
    if (has_tiny_scale) window.storage[7][128 + 2] = std::byte{3};
    const std::vector<float> expected = attend(reference_kernels(), query, window.list(), global.list(), true);
    const std::vector<float> actual = attend(table(), query, window.list(), global.list(), true);
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(actual[i], expected[i], 6e-3F) << i;
  }
}

TEST_P(Attention, ANaNInARowOfAnyFormatMakesItsColumnsNaNWithRoundedProbabilities) {
  Random random(11);
  const Query query(random, 3, 64);
  for (const RowFormat format : {RowFormat::kFp8Block32, RowFormat::kFp4Block16, RowFormat::kFp4Block32}) {
    PackedRows window(random, format, 64, 9);
    window.storage[4].back() = format == RowFormat::kFp4Block16 ? std::byte{0x7f} : std::byte{0xff};  // the last scale
    const std::vector<float> out = attend(table(), query, window.list(), {}, true);
    for (size_t i = 48; i < 64; ++i)
      EXPECT_TRUE(std::isnan(out[i])) << "format " << static_cast<int>(format) << " at " << i;
  }
  PackedRows window(random, RowFormat::kFp8Block32, 64, 9);
  window.storage[4][33] = std::byte{0xff};  // a code
  EXPECT_TRUE(std::isnan(attend(table(), query, window.list(), {}, true)[33]));
}

TEST_P(Attention, RoundingTheProbabilitiesChangesTheResult) {
  Random random(3);
  const Query query(random, 4, 64);
  const PackedRows window(random, RowFormat::kFloat32, 64, 100);
  EXPECT_NE(attend(table(), query, window.list(), {}, false), attend(table(), query, window.list(), {}, true));
}

TEST_P(Attention, NoRowsAtAllGiveZeros) {
  Random random(4);
  Query query(random, 5, 64);
  query.sink[1] = -std::numeric_limits<float>::infinity();
  for (const float v : attend(table(), query, {}, {}, true))
    EXPECT_EQ(v, 0.0F);
}

TEST_P(Attention, AHeadDoesNotDependOnTheOthers) {
  Random random(5);
  const Query query(random, 11, 512);
  const PackedRows window(random, RowFormat::kFp8Block32, 512, 70);
  const PackedRows global(random, RowFormat::kFp4Block16, 512, 33);
  const std::vector<float> all = attend(table(), query, window.list(), global.list(), true);
  for (size_t h = 0; h < query.heads; ++h) {
    Query one(random, 1, 512);
    std::copy_n(query.q.begin() + static_cast<ptrdiff_t>(h * 512), 512, one.q.begin());
    one.sink[0] = query.sink[h];
    const std::vector<float> alone = attend(table(), one, window.list(), global.list(), true);
    for (size_t i = 0; i < 512; ++i)
      ASSERT_TRUE(same_bits(alone[i], all[h * 512 + i])) << "head " << h;
  }
}

TEST_P(Attention, ExtremeScoresAndSinksStayFinite) {
  Random random(6);
  for (const float magnitude : {0.0F, 1e3F, 1e6F}) {
    Query query(random, 4, 64);
    for (float& v : query.q)
      v *= magnitude;
    query.sink = {-std::numeric_limits<float>::infinity(), -1e4F, 1e4F, 80};
    const PackedRows window(random, RowFormat::kFloat32, 64, 130);
    const std::vector<float> expected = attend(reference_kernels(), query, window.list(), {}, false);
    const std::vector<float> actual = attend(table(), query, window.list(), {}, false);
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_TRUE(std::isfinite(actual[i])) << i;
      // At 1e6 the scores are some 1e6 with errors of some units, so only at smaller ones can the two be compared.
      if (magnitude == 0) {
        ASSERT_NEAR(actual[i], expected[i], 1e-6F) << i;
      }
    }
  }
}

TEST_P(Attention, ANaNRowMakesTheResultNaN) {
  Random random(7);
  const Query query(random, 3, 64);
  PackedRows window(random, RowFormat::kFp8Block32, 64, 70);
  window.storage[66][64 + 1] = std::byte{0xff};  // the second block's scale
  const std::vector<float> out = attend(table(), query, window.list(), {}, false);
  for (size_t i = 32; i < 64; ++i)
    EXPECT_TRUE(std::isnan(out[i]));
}

/// A NaN or an infinity of a query is in its own head as in the reference's, and in no other.
TEST_P(Attention, ASpecialValueInAQueryIsInItsOwnHeadAsInTheReferences) {
  Random random(12);
  constexpr size_t kWidth = 64;
  for (const RowFormat format : kRowFormats) {
    for (const bool round : {false, true}) {
      const Query ordinary(random, 6, kWidth);
      const PackedRows window(random, format, kWidth, 70);
      const std::vector<float> without = attend(table(), ordinary, window.list(), {}, round);
      for (const float special : testing::kSpecialValues) {
        SCOPED_TRACE(::testing::Message() << "format " << static_cast<int>(format) << ", " << special);
        Query query = ordinary;
        query.q[4 * kWidth + 21] = special;
        const std::vector<float> actual = attend(table(), query, window.list(), {}, round);
        const std::vector<float> expected = attend(reference_kernels(), query, window.list(), {}, round);
        testing::expect_same_kind_and_near(actual, expected, [](size_t) { return 6e-3F; });
        for (size_t i = 0; i < actual.size(); ++i) {
          if (i / kWidth == 4) {
            ASSERT_EQ(std::isfinite(actual[i]), std::isfinite(special)) << i;
          } else {
            ASSERT_TRUE(same_bits(actual[i], without[i])) << i;
          }
        }
      }
    }
  }
}

/// Scores that are all -inf leave nothing but the sink; one that is +inf leaves no number.
TEST_P(Attention, InfiniteScoresAreAsInTheReference) {
  Random random(13);
  constexpr size_t kWidth = 64;
  for (const bool round : {false, true}) {
    for (const float sign : {-1.0F, 1.0F}) {
      Query query(random, 2, kWidth);
      query.q[5] = sign * std::numeric_limits<float>::infinity();
      PackedRows window(random, RowFormat::kFp8Block32, kWidth, 33);
      for (std::vector<std::byte>& row : window.storage)
        row[5] = std::byte{0x38};  // 1, times a scale
      const std::vector<float> actual = attend(table(), query, window.list(), {}, round);
      testing::expect_same_kind_and_near(actual, attend(reference_kernels(), query, window.list(), {}, round),
                                         [](size_t) { return 6e-3F; });
      for (size_t i = 0; i < kWidth; ++i)
        ASSERT_TRUE(sign < 0 ? actual[i] == 0.0F : std::isnan(actual[i])) << i;
    }
  }
}

/// Rows of binary32 can hold anything, and each is key and value.
TEST_P(Attention, ASpecialValueInARowIsInTheResultAsInTheReferences) {
  Random random(14);
  constexpr size_t kWidth = 80;
  for (const bool round : {false, true}) {
    const Query query(random, 5, kWidth);
    for (const float special : testing::kSpecialValues) {
      for (const size_t row : {0U, 65U}) {
        SCOPED_TRACE(::testing::Message() << special << " in row " << row);
        PackedRows window(random, RowFormat::kFloat32, kWidth, 66);
        std::memcpy(window.storage[row].data() + 79 * sizeof(float), &special, sizeof special);
        const std::vector<float> actual = attend(table(), query, window.list(), {}, round);
        testing::expect_same_kind_and_near(actual, attend(reference_kernels(), query, window.list(), {}, round),
                                           [](size_t) { return 6e-3F; });
        for (size_t h = 0; h < query.heads; ++h)
          ASSERT_EQ(std::isfinite(actual[h * kWidth + 79]), std::isfinite(special)) << h;
      }
    }
  }
}

TEST_P(Attention, ASpecialSinkIsAsInTheReference) {
  Random random(15);
  Query query(random, 6, 64);
  std::ranges::copy(testing::kSpecialValues, query.sink.begin());
  const PackedRows window(random, RowFormat::kFp8Block32, 64, 20);
  for (const bool round : {false, true}) {
    const std::vector<float> actual = attend(table(), query, window.list(), {}, round);
    testing::expect_same_kind_and_near(actual, attend(reference_kernels(), query, window.list(), {}, round),
                                       [](size_t) { return 6e-3F; });
    for (size_t i = 0; i < actual.size(); ++i)
      ASSERT_EQ(std::isnan(actual[i]), std::isnan(query.sink[i / 64])) << i;
  }
}

TEST_P(Attention, NoHeadsWriteNothing) {
  Random random(16);
  const PackedRows window(random, RowFormat::kFp8Block32, 64, 20);
  for (const bool round : {false, true})
    EXPECT_TRUE(attend(table(), Query(random, 0, 64), window.list(), {}, round).empty());
}

class IndexScores : public testing::EveryTable {};
TIDEPOOL_FOR_EVERY_TABLE(IndexScores);

struct Index {
  size_t heads;
  size_t width;
  size_t stride;
  RowFormat format;
  std::vector<float> q;
  std::vector<float> weights;
  std::vector<std::byte> keys;

  Index(Random& random, size_t head_count, size_t key_width, size_t count, RowFormat key_format, size_t gap)
      : heads(head_count),
        width(key_width),
        stride(row_bytes(key_format, key_width) + gap),
        format(key_format),
        q(head_count * key_width),
        weights(random.values(head_count)),
        keys(count == 0 ? 0 : count * stride - gap) {
    // On the grid, as the caller has them.
    std::vector<std::byte> row(row_bytes(RowFormat::kFp4Block32, width));
    for (size_t h = 0; h < heads; ++h) {
      pack_row(RowFormat::kFp4Block32, random.values(width), row);
      unpack_row(RowFormat::kFp4Block32, row, std::span(q).subspan(h * width, width));
    }
    for (float& w : weights)
      w = tidepool::round_bf16(w);
    for (size_t j = 0; j < count; ++j) {
      pack_row(format, random.values(width), std::span(keys).subspan(j * stride, row_bytes(format, width)));
    }
  }
};

/// The first `count` keys, in runs of these lengths over and over.
std::vector<KeyRun> runs_of(const Index& index, size_t count, std::span<const size_t> lengths) {
  std::vector<KeyRun> runs;
  for (size_t first = 0; first < count;) {
    const size_t length = std::min(count - first, lengths[runs.size() % lengths.size()]);
    runs.push_back({index.keys.data() + first * index.stride, length});
    first += length;
  }
  return runs;
}

std::vector<float> score(const KernelTable& table, const Index& index, std::span<const KeyRun> runs, bool round) {
  size_t count = 0;
  for (const KeyRun& run : runs)
    count += run.count;
  std::vector<float> scores(count, -5.0F);
  std::vector<float> scratch(index_scratch_floats(index.width));
  table.index_scores({.q = index.q.data(),
                      .weights = index.weights.data(),
                      .heads = index.heads,
                      .width = index.width,
                      .runs = runs.data(),
                      .run_count = runs.size(),
                      .key_stride = index.stride,
                      .format = index.format,
                      .round = round,
                      .scores = scores.data(),
                      .scratch = scratch.data()});
  return scores;
}

std::vector<float> score(const KernelTable& table, const Index& index, size_t count, bool round) {
  const KeyRun run = {index.keys.data(), count};
  return score(table, index, {&run, 1}, round);
}

TEST_P(IndexScores, AgreeWithTheReference) {
  Random random(1);
  for (const RowFormat format : kRowFormats) {
    for (const auto& [heads, width] : {std::pair<size_t, size_t>{1, 32}, {8, 32}, {9, 64}, {32, 128}}) {
      for (const size_t count : {0U, 1U, 7U, 8U, 15U, 16U, 17U, 1000U}) {
        const Index index(random, heads, width, count, format, 4);
        for (const bool round : {false, true}) {
          const std::vector<float> expected = score(reference_kernels(), index, count, round);
          const std::vector<float> actual = score(table(), index, count, round);
          for (size_t j = 0; j < count; ++j) {
            // Unrounded: width products of up to 1 per head. Rounded: each head's term may fall to the other side of a
            // tie of bfloat16, half a step of 2^-8 of it, rarely more than one of them.
            const float tolerance = static_cast<float>(heads * width) * 0x1p-24F + (round ? 0.02F : 0.0F);
            ASSERT_NEAR(actual[j], expected[j], tolerance) << j;
          }
        }
      }
    }
  }
}

/// Scales of queries and keys far apart, and queries that are on no grid.
TEST_P(IndexScores, AgreeWithTheReferenceForScalesOfAllSizesAndQueriesOffTheGrid) {
  Random random(5);
  for (const bool is_on_grid : {true, false}) {
    Index index(random, 11, 96, 70, RowFormat::kFp4Block32, 1);
    for (size_t h = 0; h < 11; ++h) {
      for (size_t i = 0; i < 96; ++i)
        index.q[h * 96 + i] = std::ldexp(index.q[h * 96 + i], static_cast<int>(h * 3 + i / 32) - 16);
    }
    if (!is_on_grid) index.q = random.values(index.q.size());
    for (size_t j = 0; j < 70; ++j) {
      for (size_t b = 0; b < 3; ++b)
        index.keys[j * index.stride + 48 + b] = static_cast<std::byte>(117 + random.below(20));
    }
    const std::vector<float> expected = score(reference_kernels(), index, 70, false);
    const std::vector<float> actual = score(table(), index, 70, false);
    for (size_t j = 0; j < 70; ++j) {
      double magnitude = 0;
      for (const float q : index.q)
        magnitude += static_cast<double>(std::fabs(q)) * 6 * 1024;
      ASSERT_NEAR(actual[j], expected[j], magnitude * 96 * 0x1p-24) << j;
    }
  }
}

/// On the FP4 grid with equal scales all products are multiples of 1/4 and all sums exact, so nothing may differ.
TEST_P(IndexScores, AreExactWhereTheArithmeticIs) {
  Random random(2);
  Index index(random, 32, 128, 300, RowFormat::kFp4Block32, 0);
  for (size_t j = 0; j < 300; ++j) {
    for (size_t b = 0; b < 4; ++b)
      index.keys[j * index.stride + 64 + b] = std::byte{127};
  }
  for (float& v : index.q)
    v = static_cast<float>(random.below(13)) - 6;
  for (float& w : index.weights)
    w = static_cast<float>(random.below(5)) / 4;
  for (const bool round : {false, true}) {
    EXPECT_EQ(score(table(), index, 300, round), score(reference_kernels(), index, 300, round));
  }
}

TEST_P(IndexScores, AScoreDoesNotDependOnItsNeighbours) {
  Random random(3);
  const Index index(random, 12, 64, 50, RowFormat::kFp4Block32, 3);
  const std::vector<float> all = score(table(), index, 50, true);
  for (size_t j = 0; j < 50; ++j) {
    Index one = index;
    one.keys.erase(one.keys.begin(), one.keys.begin() + static_cast<ptrdiff_t>(j * index.stride));
    ASSERT_TRUE(same_bits(score(table(), one, 1, true)[0], all[j])) << j;
  }
}

/// Runs of none, of one, of a block of candidates, of more than are scored at a time.
TEST_P(IndexScores, AScoreDoesNotDependOnTheRunsThatKeysLieIn) {
  Random random(6);
  const Index index(random, 32, 128, 333, RowFormat::kFp4Block32, 4);
  for (const bool round : {false, true}) {
    const std::vector<float> all = score(table(), index, 333, round);
    for (const std::vector<size_t>& lengths :
         std::vector<std::vector<size_t>>{{1}, {8}, {0, 3, 0, 0, 29}, {31, 33}, {128}, {0, 333}}) {
      const std::vector<float> in_runs = score(table(), index, runs_of(index, 333, lengths), round);
      ASSERT_EQ(in_runs.size(), all.size());
      for (size_t j = 0; j < all.size(); ++j)
        ASSERT_TRUE(same_bits(in_runs[j], all[j])) << j << " in runs of " << lengths.front();
    }
  }
}

TEST_P(IndexScores, ANegativeProductCountsAsZeroAndANaNKeyIsNaN) {
  Random random(4);
  Index index(random, 2, 32, 3, RowFormat::kFp4Block32, 0);
  std::fill(index.q.begin(), index.q.end(), 1.0F);
  const std::vector<float> minus(32, -1.0F);
  pack_row(RowFormat::kFp4Block32, minus, std::span(index.keys).first(17));
  index.keys[17 + 16] = std::byte{255};
  const std::vector<float> scores = score(table(), index, 3, false);
  EXPECT_EQ(scores[0], 0.0F);
  EXPECT_TRUE(std::isnan(scores[1]));
  EXPECT_FALSE(std::isnan(scores[2]));
}

/// relu takes the -inf of a product away, and nothing else that is no number.
TEST_P(IndexScores, SpecialValuesInQueriesAndWeightsAreAsInTheReference) {
  Random random(7);
  for (const RowFormat format : kRowFormats) {
    const Index ordinary(random, 11, 64, 37, format, 2);
    for (const float special : testing::kSpecialValues) {
      for (const bool is_weight : {false, true}) {
        for (const size_t head : {0U, 10U}) {
          for (const bool round : {false, true}) {
            SCOPED_TRACE(::testing::Message() << "format " << static_cast<int>(format) << ", " << special << " in "
                                              << (is_weight ? "the weight" : "the query") << " of head " << head);
            Index index = ordinary;
            (is_weight ? index.weights[head] : index.q[head * 64 + 33]) = special;
            const std::vector<float> actual = score(table(), index, 37, round);
            testing::expect_same_kind_and_near(actual, score(reference_kernels(), index, 37, round), [&](size_t) {
              return static_cast<float>(size_t{11} * 64) * 0x1p-24F + (round ? 0.02F : 0.0F);
            });
            for (const float value : actual)
              ASSERT_TRUE(std::isnan(value) || !std::isnan(special));
          }
        }
      }
    }
  }
}

TEST_P(IndexScores, NoKeysAndNoRunsWriteNothing) {
  Random random(8);
  const Index index(random, 3, 64, 0, RowFormat::kFp4Block32, 0);
  EXPECT_TRUE(score(table(), index, std::span<const KeyRun>(), true).empty());
  const KeyRun runs[] = {{nullptr, 0}, {nullptr, 0}};
  EXPECT_TRUE(score(table(), index, runs, true).empty());
}

}  // namespace
}  // namespace tidepool::kernels
