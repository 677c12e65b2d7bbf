#include "kernels/gathered.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "formats/row_format.h"
#include "kernels/kernels_test_support.h"

namespace tidepool::kernels {
namespace {

using testing::Random;

/// Rows of a matrix in a shuffled order, none twice, and what is multiplied with them.
struct Problem {
  size_t count;
  size_t width;
  size_t columns;
  std::vector<float> matrix;
  std::vector<float> right;    ///< [width, stride(columns)]
  std::vector<float> left;     ///< [columns, width]
  std::vector<float> weights;  ///< [count, stride(columns)]
  std::vector<const float*> rows;

  Problem(uint64_t seed, size_t row_count, size_t row_width, size_t column_count)
      : count(row_count), width(row_width), columns(column_count) {
    Random random(seed);
    matrix = random.values(count * width);
    right.assign(width * gathered_stride(columns), 0.0F);
    for (size_t i = 0; i < width; ++i)
      std::ranges::copy(random.values(columns), right.begin() + static_cast<ptrdiff_t>(i * gathered_stride(columns)));
    left = random.values(columns * width);
    weights = random.values(count * gathered_stride(columns));
    for (size_t j = 0; j < count; ++j)
      rows.push_back(matrix.data() + (count - 1 - j) * width);
  }
  [[nodiscard]] GatheredRows<float> gathered() const { return {rows.data(), count, width}; }
};

/// Sums of up to `terms` products of numbers below 1 differ by less than terms * 2^-23, whatever their order.
void expect_near(std::span<const float> actual, std::span<const float> expected, size_t terms) {
  ASSERT_EQ(actual.size(), expected.size());
  const float bound = static_cast<float>(terms) * 0x1p-23F;
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], bound) << i;
}

/// The first `columns` of each row; what lies behind them is anything.
std::vector<float> first_columns(const std::vector<float>& rows, size_t stride, size_t columns) {
  std::vector<float> result;
  for (size_t begin = 0; begin < rows.size(); begin += stride)
    result.insert(result.end(), rows.begin() + static_cast<ptrdiff_t>(begin),
                  rows.begin() + static_cast<ptrdiff_t>(begin + columns));
  return result;
}

/// Ragged numbers of rows and columns; widths that whole tiles cover and that they do not.
const Problem kProblems[] = {{1, 1, 16, 1}, {2, 7, 32, 3}, {3, 192, 64, 8}, {4, 33, 80, 16}, {5, 50, 64, 40}};

TEST(Gathered, EveryVersionMultipliesAsTheReferenceDoes) {
  const GatheredKernels<float>& reference = reference_gathered_kernels<float>();
  for (const GatheredKernels<float>* kernels : available_gathered_kernels()) {
    for (const Problem& problem : kProblems) {
      SCOPED_TRACE(std::string(kernels->name) + " " + std::to_string(problem.count));
      const size_t stride = gathered_stride(problem.columns);
      std::vector<float> expected(problem.count * stride);
      std::vector<float> actual(problem.count * stride);
      reference.products(problem.gathered(), problem.right.data(), problem.columns, expected.data());
      kernels->products(problem.gathered(), problem.right.data(), problem.columns, actual.data());
      expect_near(actual, expected, problem.width);

      expected.assign(problem.columns * problem.width, 9.0F);
      actual.assign(problem.columns * problem.width, 9.0F);
      reference.sums(problem.gathered(), problem.weights.data(), stride, problem.columns, expected.data());
      kernels->sums(problem.gathered(), problem.weights.data(), stride, problem.columns, actual.data());
      expect_near(actual, expected, problem.count);
    }
  }
}

/// The problem's matrix with `left` spread over its rows.
std::vector<float> spread_onto_rows(const GatheredKernels<float>& kernels, const Problem& problem) {
  std::vector<float> result = problem.matrix;
  std::vector<float*> rows;
  for (size_t j = 0; j < problem.count; ++j)
    rows.push_back(result.data() + j * problem.width);
  kernels.spread(rows.data(), problem.count, problem.width, problem.weights.data(), problem.columns,
                 problem.left.data());
  return result;
}

TEST(Gathered, EveryVersionSpreadsOntoWhatTheRowsHold) {
  const GatheredKernels<float>& reference = reference_gathered_kernels<float>();
  for (const GatheredKernels<float>* kernels : available_gathered_kernels()) {
    for (const Problem& problem : kProblems) {
      SCOPED_TRACE(std::string(kernels->name) + " " + std::to_string(problem.count));
      expect_near(spread_onto_rows(*kernels, problem), spread_onto_rows(reference, problem), problem.columns + 1);
    }
  }
}

TEST(Gathered, EveryVersionHasTheReferencesSoftmaxAndItsGradient) {
  const GatheredKernels<float>& reference = reference_gathered_kernels<float>();
  for (const GatheredKernels<float>* kernels : available_gathered_kernels()) {
    for (const size_t columns : {size_t{3}, size_t{8}, size_t{20}}) {
      SCOPED_TRACE(std::string(kernels->name) + " " + std::to_string(columns));
      constexpr size_t kCount = 70;
      Random random(columns);
      const std::vector<float> sink = random.values(columns, 2);
      const std::vector<float> scores = random.values(kCount * gathered_stride(columns), 8);
      const auto run_softmax = [&](const GatheredKernels<float>& version, std::vector<float>& log_sum) {
        std::vector<float> p = scores;
        version.softmax(p.data(), kCount, columns, 0.5F, sink.data(), log_sum.data());
        return first_columns(p, gathered_stride(columns), columns);
      };
      std::vector<float> expected_log(columns);
      std::vector<float> actual_log(columns);
      // Exponentials to 2 units of the last place of at most 1, sums of 70 of them.
      expect_near(run_softmax(*kernels, actual_log), run_softmax(reference, expected_log), 80);
      expect_near(actual_log, expected_log, 80);

      const std::vector<float> delta = random.values(columns);
      const std::vector<float> pairs = random.values(kCount * gathered_stride(2 * columns), 4);
      const size_t stride = gathered_stride(2 * columns);
      const auto run_gradient = [&](const GatheredKernels<float>& version) {
        std::vector<float> out(pairs.size() + 1, 77.0F);
        version.softmax_gradient(pairs.data(), kCount, columns, 0.5F, expected_log.data(), delta.data(), out.data());
        EXPECT_EQ(out.back(), 77.0F);  // nothing is written behind the last row
        out.pop_back();
        return first_columns(out, stride, 2 * columns);
      };
      const std::vector<float> expected = run_gradient(reference);
      const std::vector<float> actual = run_gradient(*kernels);
      expect_near(actual, expected, 16);
    }
  }
}

TEST(Gathered, EveryVersionHasTheReferencesWeightedReluAndItsGradient) {
  const GatheredKernels<float>& reference = reference_gathered_kernels<float>();
  for (const GatheredKernels<float>* kernels : available_gathered_kernels()) {
    for (const size_t columns : {size_t{3}, size_t{8}, size_t{20}}) {
      SCOPED_TRACE(std::string(kernels->name) + " " + std::to_string(columns));
      constexpr size_t kCount = 37;
      Random random(columns);
      std::vector<float> products = random.values(kCount * gathered_stride(columns));
      products[1] = 0;  // counts as not positive
      const std::vector<float> weights = random.values(columns);
      const std::vector<float> g = random.values(kCount);
      std::vector<float> expected(kCount);
      std::vector<float> actual(kCount);
      reference.relu_sums(products.data(), kCount, columns, weights.data(), expected.data());
      kernels->relu_sums(products.data(), kCount, columns, weights.data(), actual.data());
      expect_near(actual, expected, columns);

      std::vector<float> expected_products = products;
      std::vector<float> actual_products = products;
      expected = weights;
      actual = weights;
      reference.relu_gradient(expected_products.data(), kCount, columns, weights.data(), g.data(), expected.data());
      kernels->relu_gradient(actual_products.data(), kCount, columns, weights.data(), g.data(), actual.data());
      EXPECT_EQ(first_columns(actual_products, gathered_stride(columns), columns),
                first_columns(expected_products, gathered_stride(columns), columns));
      expect_near(actual, expected, kCount + 1);
    }
  }
}

/// Numbers below `magnitude`, and among each seven one special value in turn.
std::vector<float> values_with_specials(Random& random, size_t count, float magnitude) {
  std::vector<float> values = random.values(count, magnitude);
  for (size_t i = 3, next = 0; i < count; i += 7)
    values[i] = testing::kSpecialValues[next++ % std::size(testing::kSpecialValues)];
  return values;
}

/// Some columns and rows meet special values, others none.
TEST(Gathered, EveryVersionMultipliesSpecialValuesAsTheReferenceDoes) {
  const GatheredKernels<float>& reference = reference_gathered_kernels<float>();
  constexpr size_t kCount = 13;
  constexpr size_t kWidth = 80;
  constexpr size_t kColumns = 11;
  const size_t stride = gathered_stride(kColumns);
  for (const GatheredKernels<float>* kernels : available_gathered_kernels()) {
    for (const float special : testing::kSpecialValues) {
      SCOPED_TRACE(::testing::Message() << kernels->name << ": " << special);
      Problem problem(6, kCount, kWidth, kColumns);
      problem.matrix[4 * kWidth + 67] = special;
      problem.right[20 * stride + 10] = special;
      problem.left[7 * kWidth + 79] = special;
      problem.weights[12 * stride + 3] = special;
      const auto near = [](size_t) { return kWidth * 0x1p-23F; };
      std::vector<float> expected(kCount * stride);
      std::vector<float> actual(kCount * stride);
      reference.products(problem.gathered(), problem.right.data(), kColumns, expected.data());
      kernels->products(problem.gathered(), problem.right.data(), kColumns, actual.data());
      testing::expect_same_kind_and_near(first_columns(actual, stride, kColumns),
                                         first_columns(expected, stride, kColumns), near);

      expected.resize(kColumns * kWidth);
      actual.resize(kColumns * kWidth);
      reference.sums(problem.gathered(), problem.weights.data(), stride, kColumns, expected.data());
      kernels->sums(problem.gathered(), problem.weights.data(), stride, kColumns, actual.data());
      testing::expect_same_kind_and_near(actual, expected, near);

      expected = spread_onto_rows(reference, problem);
      testing::expect_same_kind_and_near(spread_onto_rows(*kernels, problem), expected, near);
      EXPECT_EQ(std::isfinite(expected[4 * kWidth + 67]), std::isfinite(special));
    }
  }
}

/// A score or a sink that is NaN or +inf leaves its column without a probability; one that is -inf has none itself.
TEST(Gathered, SoftmaxOfSpecialValuesIsOfTheReferencesKind) {
  const GatheredKernels<float>& reference = reference_gathered_kernels<float>();
  constexpr size_t kCount = 9;
  constexpr size_t kColumns = 27;
  const size_t stride = gathered_stride(kColumns);
  for (const GatheredKernels<float>* kernels : available_gathered_kernels()) {
    SCOPED_TRACE(std::string(kernels->name));
    for (size_t row = 0; row < kCount; ++row) {
      Random random(row);
      std::vector<float> scores = random.values(kCount * stride, 8);
      std::vector<float> sink = random.values(kColumns, 2);
      for (size_t i = 0; i < std::size(testing::kSpecialValues); ++i) {
        scores[row * stride + 2 * i] = testing::kSpecialValues[i];
        sink[kColumns - 1 - 2 * i] = testing::kSpecialValues[i];
      }
      const auto run = [&](const GatheredKernels<float>& version, std::vector<float>& log_sum) {
        std::vector<float> p = scores;
        version.softmax(p.data(), kCount, kColumns, 0.5F, sink.data(), log_sum.data());
        return first_columns(p, stride, kColumns);
      };
      std::vector<float> expected_log(kColumns);
      std::vector<float> log(kColumns);
      const auto near = [](size_t) { return 80 * 0x1p-23F; };
      testing::expect_same_kind_and_near(run(*kernels, log), run(reference, expected_log), near);
      testing::expect_same_kind_and_near(log, expected_log, near);
      EXPECT_TRUE(std::isnan(log[0]));
      EXPECT_TRUE(std::isfinite(log[6]));  // of a row that is -inf
      EXPECT_TRUE(std::isfinite(log[1]));
    }
  }
}

TEST(Gathered, SoftmaxGradientOfSpecialValuesIsOfTheReferencesKind) {
  const GatheredKernels<float>& reference = reference_gathered_kernels<float>();
  constexpr size_t kCount = 9;
  constexpr size_t kColumns = 11;
  const size_t stride = gathered_stride(2 * kColumns);
  for (const GatheredKernels<float>* kernels : available_gathered_kernels()) {
    SCOPED_TRACE(std::string(kernels->name));
    Random random(17);
    const std::vector<float> pairs = values_with_specials(random, kCount * stride, 4);
    const std::vector<float> log_sum = values_with_specials(random, kColumns, 1);
    const std::vector<float> delta = values_with_specials(random, kColumns, 1);
    const auto run = [&](const GatheredKernels<float>& version) {
      std::vector<float> out(pairs.size());
      version.softmax_gradient(pairs.data(), kCount, kColumns, 0.5F, log_sum.data(), delta.data(), out.data());
      return first_columns(out, stride, 2 * kColumns);
    };
    // e^3 times up to 5, the exponential to 2 units of the last place.
    testing::expect_same_kind_and_near(run(*kernels), run(reference), [](size_t) { return 400 * 0x1p-23F; });
  }
}

/// Most of all: a NaN product stays one, and is not taken for what is not positive.
TEST(Gathered, WeightedReluOfSpecialValuesAndItsGradientAreOfTheReferencesKind) {
  const GatheredKernels<float>& reference = reference_gathered_kernels<float>();
  constexpr size_t kCount = 37;
  const auto near = [](size_t) { return (kCount + 1) * 0x1p-23F; };
  for (const GatheredKernels<float>* kernels : available_gathered_kernels()) {
    for (const size_t columns : {size_t{3}, size_t{8}, size_t{20}}) {
      SCOPED_TRACE(std::string(kernels->name) + " " + std::to_string(columns));
      Random random(columns);
      const size_t stride = gathered_stride(columns);
      // Rows and columns without special values too.
      std::vector<float> products = random.values(kCount * stride);
      for (size_t i = 0; i < std::size(testing::kSpecialValues); ++i)
        products[(2 * i + 1) * stride + i % columns] = testing::kSpecialValues[i];
      const std::vector<float> weights = random.values(columns);
      const std::vector<float> g = random.values(kCount);
      std::vector<float> expected(kCount);
      std::vector<float> actual(kCount);
      reference.relu_sums(products.data(), kCount, columns, weights.data(), expected.data());
      kernels->relu_sums(products.data(), kCount, columns, weights.data(), actual.data());
      testing::expect_same_kind_and_near(actual, expected, near);
      EXPECT_TRUE(std::isnan(actual[1]));
      EXPECT_TRUE(std::isfinite(actual[2]));

      std::vector<float> expected_products = products;
      std::vector<float> actual_products = products;
      expected = weights;
      actual = weights;
      reference.relu_gradient(expected_products.data(), kCount, columns, weights.data(), g.data(), expected.data());
      kernels->relu_gradient(actual_products.data(), kCount, columns, weights.data(), g.data(), actual.data());
      testing::expect_same_kind_and_near(first_columns(actual_products, stride, columns),
                                         first_columns(expected_products, stride, columns), [](size_t) { return 0; });
      testing::expect_same_kind_and_near(actual, expected, near);
      EXPECT_TRUE(std::isnan(actual_products[stride]));
      EXPECT_TRUE(std::isnan(actual[0]));
    }
  }
}

TEST(Gathered, PanelScoresOfSpecialValuesAreOfTheReferencesKind) {
  const GatheredKernels<float>& reference = reference_gathered_kernels<float>();
  constexpr size_t kHeads = 11;
  constexpr size_t kWidth = 32;
  constexpr size_t kPanels = 2;
  for (const GatheredKernels<float>* kernels : available_gathered_kernels()) {
    for (const float special : testing::kSpecialValues) {
      // In a query, in a weight, in a key.
      for (size_t place = 0; place < 3; ++place) {
        SCOPED_TRACE(::testing::Message() << kernels->name << ": " << special << ", " << place);
        Random random(19);
        std::vector<float> q = random.values(kHeads * kWidth);
        std::vector<float> weights = random.values(kHeads);
        std::vector<float> panels = random.values(kPanels * kKeysPerPanel * kWidth);
        if (place == 0) q[9 * kWidth + 31] = special;
        if (place == 1) weights[3] = special;
        if (place == 2) panels[kWidth * kKeysPerPanel + 17] = special;
        const auto run = [&](const GatheredKernels<float>& version) {
          std::vector<float> scores(kPanels * kKeysPerPanel);
          version.panel_scores({.q = q.data(),
                                .weights = weights.data(),
                                .rows = 1,
                                .heads = kHeads,
                                .width = kWidth,
                                .panels = panels.data(),
                                .panel_count = kPanels,
                                .scores = scores.data(),
                                .scores_stride = scores.size()});
          return scores;
        };
        const std::vector<float> actual = run(*kernels);
        testing::expect_same_kind_and_near(actual, run(reference), [](size_t) { return kHeads * kWidth * 0x1p-23F; });
        EXPECT_EQ(std::isnan(actual[kKeysPerPanel + 17]), std::isnan(special) || std::isnan(run(reference)[49]));
        EXPECT_EQ(std::isnan(actual[0]), place < 2 && (std::isnan(special) || std::isnan(run(reference)[0])));
      }
    }
  }
}

TEST(Gathered, NothingIsReadOrWrittenWhereThereIsNothing) {
  constexpr size_t kColumns = 5;
  const std::vector<float> ones(64, 1.0F);
  for (const GatheredKernels<float>* kernels : available_gathered_kernels()) {
    SCOPED_TRACE(std::string(kernels->name));
    const GatheredRows<float> rows{nullptr, 0, 32};
    kernels->products(rows, ones.data(), kColumns, nullptr);
    std::vector<float> sums(kColumns * 32, 9.0F);
    kernels->sums(rows, nullptr, 16, kColumns, sums.data());
    EXPECT_EQ(sums, std::vector<float>(sums.size(), 0.0F));
    kernels->spread(nullptr, 0, 32, nullptr, kColumns, ones.data());
    std::vector<float> log_sum(kColumns);
    kernels->softmax(nullptr, 0, kColumns, 1, ones.data(), log_sum.data());
    EXPECT_EQ(log_sum, std::vector<float>(kColumns, 1.0F));  // the sinks
    kernels->softmax_gradient(nullptr, 0, kColumns, 1, ones.data(), ones.data(), nullptr);
    kernels->relu_sums(nullptr, 0, kColumns, ones.data(), nullptr);
    std::vector<float> gradient(kColumns, 3.0F);
    kernels->relu_gradient(nullptr, 0, kColumns, ones.data(), nullptr, gradient.data());
    EXPECT_EQ(gradient, std::vector<float>(kColumns, 3.0F));
    kernels->panel_scores({.rows = 0, .heads = 1, .width = 32, .panel_count = 1});
    kernels->panel_scores({.rows = 1, .heads = 1, .width = 32, .panel_count = 0});
    kernels->lane_maxima(nullptr, 0, 4, nullptr);
    EXPECT_EQ(kernels->collect(nullptr, 0, 0, nullptr), 0U);
  }
}

TEST(Gathered, MaximaAndCollectedPlacesAreExact) {
  constexpr size_t kCount = 16 * 12 + 5;
  Random random(3);
  std::vector<float> x = random.values(kCount);
  x[7] = std::numeric_limits<float>::quiet_NaN();
  x[40] = -std::numeric_limits<float>::infinity();
  for (const GatheredKernels<float>* kernels : available_gathered_kernels()) {
    std::vector<float> maxima(size_t{3} * 16);
    kernels->lane_maxima(x.data(), 3, 4, maxima.data());
    for (size_t i = 0; i < maxima.size(); ++i) {
      float largest = -std::numeric_limits<float>::infinity();
      for (size_t v = 0; v < 4; ++v)
        largest = std::fmax(largest, x[(i / 16 * 4 + v) * 16 + i % 16]);
      EXPECT_EQ(maxima[i], largest) << kernels->name << " " << i;
    }
    for (const float least : {0.9F, 0.0F, -2.0F, x[kCount - 1]}) {
      std::vector<uint32_t> expected;
      for (size_t i = 0; i < kCount; ++i) {
        if (x[i] >= least) expected.push_back(static_cast<uint32_t>(i));
      }
      std::vector<uint32_t> places(kCount);
      places.resize(kernels->collect(x.data(), kCount, least, places.data()));
      EXPECT_EQ(places, expected) << kernels->name;
    }
  }
}

/// On the FP4 grid one block's products are whole multiples of one number below 2^24 of it: exact in any order.
TEST(Gathered, PanelScoresAreTheBitsOfTheEnginesReference) {
  constexpr size_t kRows = 3;
  constexpr size_t kWidth = 32;
  constexpr size_t kKeys = 75;
  for (const size_t heads : {size_t{1}, size_t{8}, size_t{13}}) {
    Random random(heads);
    const size_t bytes = row_bytes(RowFormat::kFp4Block32, kWidth);
    std::vector<float> q = random.values(kRows * heads * kWidth, 3);
    for (size_t i = 0; i < kRows * heads; ++i) {
      std::vector<std::byte> packed(bytes);
      pack_row(RowFormat::kFp4Block32, std::span(q).subspan(i * kWidth, kWidth), packed);
      unpack_row(RowFormat::kFp4Block32, packed, std::span(q).subspan(i * kWidth, kWidth));
    }
    const std::vector<float> weights = random.values(kRows * heads);
    std::vector<std::byte> keys(kKeys * bytes);
    std::vector<float> panels(key_panels(kKeys) * kKeysPerPanel * kWidth, 0.0F);
    for (size_t j = 0; j < kKeys; ++j) {
      std::vector<float> key = random.values(kWidth, 3);
      const std::span<std::byte> packed = std::span(keys).subspan(j * bytes, bytes);
      pack_row(RowFormat::kFp4Block32, key, packed);
      unpack_row(RowFormat::kFp4Block32, packed, key);
      for (size_t i = 0; i < kWidth; ++i)
        panels[(j / kKeysPerPanel * kWidth + i) * kKeysPerPanel + j % kKeysPerPanel] = key[i];
    }
    std::vector<float> expected(kRows * kKeys);
    std::vector<float> scratch(index_scratch_floats(kWidth));
    const KeyRun run = {keys.data(), kKeys};
    for (size_t row = 0; row < kRows; ++row) {
      reference_kernels().index_scores({.q = q.data() + row * heads * kWidth,
                                        .weights = weights.data() + row * heads,
                                        .heads = heads,
                                        .width = kWidth,
                                        .runs = &run,
                                        .run_count = 1,
                                        .key_stride = bytes,
                                        .scores = expected.data() + row * kKeys,
                                        .scratch = scratch.data()});
    }
    const size_t stride = key_panels(kKeys) * kKeysPerPanel;
    for (const GatheredKernels<float>* kernels : available_gathered_kernels()) {
      std::vector<float> scores(kRows * stride, 9.0F);
      kernels->panel_scores({.q = q.data(),
                             .weights = weights.data(),
                             .rows = kRows,
                             .heads = heads,
                             .width = kWidth,
                             .panels = panels.data(),
                             .panel_count = key_panels(kKeys),
                             .scores = scores.data(),
                             .scores_stride = stride});
      for (size_t row = 0; row < kRows; ++row) {
        EXPECT_TRUE(std::ranges::equal(std::span(scores).subspan(row * stride, kKeys),
                                       std::span(expected).subspan(row * kKeys, kKeys)))
            << kernels->name << ", " << heads << " heads, row " << row;
      }
    }
  }
}

}  // namespace
}  // namespace tidepool::kernels
