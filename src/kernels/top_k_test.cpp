#include "kernels/top_k.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/kernels_test_support.h"

namespace tidepool::kernels {
namespace {

using testing::Random;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<uint32_t> selected(const std::vector<float>& scores, size_t k) {
  std::vector<uint32_t> indices(std::min(k, scores.size()), 0xffffffffU);
  indices.resize(select_top_k(scores, k, indices));
  for (const KernelTable* table : available_kernels()) {
    std::vector<uint32_t> same(std::min(k, scores.size()), 0xffffffffU);
    same.resize(select_top_k(scores, k, same, *table));
    EXPECT_EQ(same, indices) << table->name;
  }
  return indices;
}

/// By three threads, which take the parts by turns.
std::vector<uint32_t> selected_together(const std::vector<float>& scores, size_t k) {
  ThreadPool pool(3);
  std::vector<uint32_t> indices(std::min(k, scores.size()));
  std::vector<uint32_t> places(shared_top_k_scratch(3, k));
  std::vector<float> values(places.size());
  indices.resize(select_top_k(pool, {scores, k, indices, places, values}, reference_kernels()));
  return indices;
}

/// By a stable sort: falling score, equal ones in the order they came.
std::vector<uint32_t> selected_by_sort(const std::vector<float>& scores, size_t k) {
  std::vector<uint32_t> order;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!std::isnan(scores[i]) && scores[i] != -kInfinity) order.push_back(static_cast<uint32_t>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  order.resize(std::min(k, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(TopK, AgreesWithAStableSort) {
  Random random(1);
  for (const size_t n : {0U, 1U, 2U, 31U, 512U, 513U, 5000U}) {
    for (const size_t k : {0U, 1U, 2U, 16U, 512U, 6000U}) {
      std::vector<float> few(n);
      for (float& v : few)
        v = static_cast<float>(random.below(5)) - 2;
      EXPECT_EQ(selected(few, k), selected_by_sort(few, k)) << n << " " << k;
      const std::vector<float> many = random.values(n, 1e3F);
      EXPECT_EQ(selected(many, k), selected_by_sort(many, k)) << n << " " << k;
      std::vector<float> any(n);
      for (float& v : any)
        v = std::bit_cast<float>(static_cast<uint32_t>(random.bits()));
      EXPECT_EQ(selected(any, k), selected_by_sort(any, k)) << n << " " << k;
    }
  }
}

TEST(TopK, AMillionScores) {
  Random random(2);
  const std::vector<float> scores = random.values(1'000'000);
  EXPECT_EQ(selected(scores, 512), selected_by_sort(scores, 512));
  std::vector<float> rounded = scores;
  for (float& v : rounded)
    v = round_bf16(v);
  EXPECT_EQ(selected(rounded, 16384), selected_by_sort(rounded, 16384));
}

TEST(TopK, ThreadsTogetherGiveTheSameAnswer) {
  Random random(5);
  std::vector<float> scores = random.values(200'001);
  EXPECT_EQ(selected_together(scores, 512), selected_by_sort(scores, 512));
  for (float& v : scores)
    v = std::floor(4 * v);  // many ties, across parts
  EXPECT_EQ(selected_together(scores, 512), selected_by_sort(scores, 512));
  std::fill(scores.begin(), scores.begin() + 150'000, kNaN);  // parts without enough to choose
  std::fill(scores.begin() + 150'000, scores.end(), -kInfinity);
  scores[199'999] = 1;
  EXPECT_EQ(selected_together(scores, 512), std::vector<uint32_t>{199'999});
  scores.resize(1000);  // too little to share
  EXPECT_TRUE(selected_together(scores, 512).empty());
}

/// Where all large ones are in one part, where each score is the largest so far, and where the shared estimate is too
/// high for all but a few.
TEST(TopK, ThreadsTogetherGiveTheSameAnswerOnUnkindOrders) {
  Random random(6);
  constexpr size_t kCount = 200'001;
  std::vector<std::vector<float>> orders(3, random.values(kCount));
  for (size_t i = 70'000; i < 90'000; ++i)
    orders[0][i] += 1e6F;
  std::sort(orders[1].begin(), orders[1].end());
  orders[2].assign(kCount, -1.0F);
  for (size_t i = 0; i < kCount; i += kCount / 2048)
    orders[2][i] = 1e6F + random.value();
  for (size_t order = 0; order < orders.size(); ++order) {
    for (const size_t k : {0U, 1U, 512U, 2048U, 3000U})
      ASSERT_EQ(selected_together(orders[order], k), selected_by_sort(orders[order], k)) << k << " order " << order;
  }
}

/// Orders that mislead an estimate from evenly spaced scores, or that make every score the largest so far.
TEST(TopK, AgreesWithAStableSortOnUnkindOrders) {
  Random random(3);
  for (const size_t n : {16383U, 16384U, 16385U, 40000U, 40961U}) {
    std::vector<std::vector<float>> orders;
    orders.push_back(random.values(n));
    std::sort(orders.back().begin(), orders.back().end());
    orders.emplace_back(orders.back().rbegin(), orders.back().rend());
    // Both parts ascend; the scores at multiples of the spacing, n / 2048, are above all others or below.
    const size_t spacing = n / 2048;
    for (const float at_spacing : {1e6F, -1e6F}) {
      orders.emplace_back(n);
      for (size_t i = 0; i < n; ++i)
        orders.back()[i] = static_cast<float>(i) + (i % spacing == 0 ? at_spacing : 0);
    }
    // Fewer selectable ones than asked for, or just as many.
    for (const size_t step : {n, n / 511, n / 512, n / 513}) {
      orders.emplace_back(n, -kInfinity);
      for (size_t i = 1; i < n; i += step)
        orders.back()[i] = random.value();
    }
    orders.emplace_back(n, kNaN);
    orders.back()[n - 1] = 0;
    // Equal ones on both sides of the threshold, zeros of both signs.
    orders.emplace_back(n);
    for (float& v : orders.back())
      v = static_cast<float>(random.below(3)) * -0.0F;
    orders.emplace_back(n);
    for (float& v : orders.back())
      v = std::numeric_limits<float>::lowest() / static_cast<float>(1 + random.below(2));
    for (size_t order = 0; order < orders.size(); ++order) {
      for (const size_t k : {1U, 6U, 512U, 2048U, 2049U})
        ASSERT_EQ(selected(orders[order], k), selected_by_sort(orders[order], k))
            << n << " " << k << " order " << order;
    }
  }
}

/// Low wherever a sample of one score from each of 2,048 equal parts might look, but for a few places of each part, and
/// the other way round.
TEST(TopK, AgreesWithAStableSortWhereMostPlacesMislead) {
  Random random(4);
  constexpr size_t kCount = size_t{2048} * 37;
  for (const size_t first : {0U, 17U, 36U}) {
    for (const float misleading : {-1e3F, 1e3F}) {
      std::vector<float> scores = random.values(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        if ((i % 37 + 37 - first) % 37 < 30) scores[i] += misleading;
      }
      for (const size_t k : {1U, 512U, 2048U})
        ASSERT_EQ(selected(scores, k), selected_by_sort(scores, k)) << first << " " << misleading << " " << k;
    }
  }
}

TEST(TopK, OfEqualScoresTheLowestIndicesAreTaken) {
  const std::vector<float> equal(1'000'000, -1.5F);
  std::vector<uint32_t> first(512);
  std::iota(first.begin(), first.end(), 0U);
  EXPECT_EQ(selected(equal, 512), first);
  EXPECT_EQ(selected({1, 2, 1, 2, 1, 2}, 4), (std::vector<uint32_t>{0, 1, 3, 5}));
}

TEST(TopK, MinusInfinityAndNaNAreNeverSelected) {
  EXPECT_EQ(selected({-kInfinity, 1, kNaN, -3e38F, -kNaN, kInfinity}, 6), (std::vector<uint32_t>{1, 3, 5}));
  EXPECT_EQ(selected({-kInfinity, kNaN}, 1), std::vector<uint32_t>{});
}

TEST(TopK, ZerosOfBothSignsAreEqual) {
  EXPECT_EQ(selected({-0.0F, 0.0F, -1}, 1), (std::vector<uint32_t>{0}));
  EXPECT_EQ(selected({-1e-45F, -0.0F, 1e-45F}, 2), (std::vector<uint32_t>{1, 2}));
}

}  // namespace
}  // namespace tidepool::kernels
