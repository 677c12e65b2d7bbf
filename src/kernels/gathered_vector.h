#pragma once

#include <utility>

#include "kernels/gathered.h"
#include "kernels/math_vector.h"

// Products with gathered rows for any Vec (gathered_avx2.cpp, gathered_avx512.cpp). A tile of sums stays in registers
// while its terms pass by: of each vector that is loaded, several sums make use. Indices of registers are constants,
// not those of a loop, because gcc decides before it unrolls loops whether an array can be registers.

namespace tidepool::kernels {
namespace {

inline constexpr size_t kLanes = Vec::kLanes;
/// Vectors of a row that a tile covers: with four sums of each it fills half of the registers.
inline constexpr size_t kTileVectors = kLanes == 16 ? 4 : 2;
inline constexpr size_t kTileSums = 4;

/// Rows [0, count) of kRows, the last one repeated.
template <size_t kRows>
struct RowBlock {
  const float* row[kRows];

  RowBlock(const float* const* rows, size_t count) {
    for (size_t j = 0; j < kRows; ++j)
      row[j] = rows[smaller(j, count - 1)];
  }
};

/// kVectors columns' vectors of the products of `count` rows with `right`.
template <size_t kRows, size_t kVectors, size_t... kIndex>
TIDEPOOL_INLINE void product_tile(const float* const* rows, size_t count, size_t width, const float* right,
                                  size_t stride, float* out, std::index_sequence<kIndex...> /*sums*/) {
  static_assert(kVectors <= 2);
  const RowBlock<kRows> block(rows, count);
  Vec::F sum[kRows * kVectors] = {(static_cast<void>(kIndex), Vec::zero())...};
  for (size_t i = 0; i < width; ++i) {
    const Vec::F first = Vec::load(right + i * stride);
    const Vec::F second = kVectors == 1 ? first : Vec::load(right + i * stride + kLanes);
    ((sum[kIndex] =
          Vec::fma(Vec::all(block.row[kIndex / kVectors][i]), kIndex % kVectors == 0 ? first : second, sum[kIndex])),
     ...);
  }
  const auto store = [&](size_t index, Vec::F value) {
    if (index / kVectors < count) Vec::store(out + index / kVectors * stride + index % kVectors * kLanes, value);
  };
  (store(kIndex, sum[kIndex]), ...);
}

template <size_t kRows, size_t kVectors>
TIDEPOOL_INLINE void product_columns(const GatheredRows<float>& rows, const float* right, size_t stride, float* out) {
  for (size_t j = 0; j < rows.count; j += kRows) {
    product_tile<kRows, kVectors>(rows.rows + j, smaller(kRows, rows.count - j), rows.width, right, stride,
                                  out + j * stride, std::make_index_sequence<kRows * kVectors>());
  }
}

inline void gathered_products(const GatheredRows<float>& rows, const float* right, size_t columns, float* out) {
  const size_t stride = gathered_stride(columns);
  const size_t end = (columns + kLanes - 1) / kLanes * kLanes;
  size_t column = 0;
  for (; column + 2 * kLanes <= end; column += 2 * kLanes)
    product_columns<4, 2>(rows, right + column, stride, out + column);
  if (column < end) product_columns<8, 1>(rows, right + column, stride, out + column);
}

/// to(a)[..] = from(a)[..] + sum_k factor(a, k) * row(k)[..], for kSums values of a and kVectors vectors from `column`
/// on; terms in ascending order of k.
template <size_t kSums, size_t kVectors, typename From, typename Factor, typename Row, typename To, size_t... kIndex>
TIDEPOOL_INLINE void sum_tile(size_t terms, size_t column, const From& from, const Factor& factor, const Row& row,
                              const To& to, std::index_sequence<kIndex...> /*sums*/) {
  static_assert(kVectors <= 4);
  Vec::F sum[kSums * kVectors] = {from(kIndex / kVectors, column + kIndex % kVectors * kLanes)...};
  for (size_t k = 0; k < terms; ++k) {
    const float* values = row(k) + column;
    const Vec::F first = Vec::load(values);
    const Vec::F second = kVectors > 1 ? Vec::load(values + kLanes) : first;
    const Vec::F third = kVectors > 2 ? Vec::load(values + 2 * kLanes) : first;
    const Vec::F fourth = kVectors > 3 ? Vec::load(values + 3 * kLanes) : first;
    const auto pick = [&](size_t v) { return v == 0 ? first : v == 1 ? second : v == 2 ? third : fourth; };
    ((sum[kIndex] = Vec::fma(Vec::all(factor(kIndex / kVectors, k)), pick(kIndex % kVectors), sum[kIndex])), ...);
  }
  (to(kIndex / kVectors, column + kIndex % kVectors * kLanes, sum[kIndex]), ...);
}

/// The same over a whole width, a multiple of kLanes.
template <size_t kSums, typename From, typename Factor, typename Row, typename To>
TIDEPOOL_INLINE void sum_rows(size_t terms, size_t width, const From& from, const Factor& factor, const Row& row,
                              const To& to) {
  size_t column = 0;
  for (; column + kTileVectors * kLanes <= width; column += kTileVectors * kLanes) {
    sum_tile<kSums, kTileVectors>(terms, column, from, factor, row, to,
                                  std::make_index_sequence<kSums * kTileVectors>());
  }
  for (; column < width; column += kLanes)
    sum_tile<kSums, 1>(terms, column, from, factor, row, to, std::make_index_sequence<kSums>());
}

/// Columns [first, first + kSums) of the weights, which without rows may be null.
template <size_t kSums>
TIDEPOOL_INLINE void sum_columns(const GatheredRows<float>& rows, const float* weights, size_t stride, size_t first,
                                 float* out) {
  sum_rows<kSums>(
      rows.count, rows.width, [](size_t, size_t) { return Vec::zero(); },
      [&](size_t c, size_t j) { return weights[j * stride + first + c]; }, [&](size_t j) { return rows.rows[j]; },
      [&](size_t c, size_t column, Vec::F value) { Vec::store(out + (first + c) * rows.width + column, value); });
}

inline void gathered_sums(const GatheredRows<float>& rows, const float* weights, size_t stride, size_t columns,
                          float* out) {
  size_t c = 0;
  for (; c + kTileSums <= columns; c += kTileSums)
    sum_columns<kTileSums>(rows, weights, stride, c, out);
  for (; c < columns; ++c)
    sum_columns<1>(rows, weights, stride, c, out);
}

/// What is spread over rows: [columns, width].
struct Spread {
  const float* left;
  size_t columns;
  size_t width;
};

template <size_t kSums>
TIDEPOOL_INLINE void spread_rows(float* const* rows, const float* weights, const Spread& spread) {
  const size_t stride = gathered_stride(spread.columns);
  sum_rows<kSums>(
      spread.columns, spread.width, [&](size_t j, size_t column) { return Vec::load(rows[j] + column); },
      [&](size_t j, size_t c) { return weights[j * stride + c]; },
      [&](size_t c) { return spread.left + c * spread.width; },
      [&](size_t j, size_t column, Vec::F value) { Vec::store(rows[j] + column, value); });
}

inline void gathered_spread(float* const* rows, size_t count, const float* weights, const Spread& spread) {
  const size_t stride = gathered_stride(spread.columns);
  size_t j = 0;
  for (; j + kTileSums <= count; j += kTileSums)
    spread_rows<kTileSums>(rows + j, weights + j * stride, spread);
  for (; j < count; ++j)
    spread_rows<1>(rows + j, weights + j * stride, spread);
}

/// kLanes columns of the softmax; `columns` of them exist.
inline void softmax_columns(float* p, size_t count, size_t stride, size_t columns, float scale, const float* sink,
                            float* log_sum) {
  const Vec::F factor = Vec::all(scale);
  const Vec::F sinks = Vec::load(sink, columns);
  Vec::F max = sinks;
  for (size_t j = 0; j < count; ++j)
    max = Vec::max(max, Vec::mul(factor, Vec::load(p + j * stride)));
  Vec::F sum = exponential(Vec::sub(sinks, max));
  for (size_t j = 0; j < count; ++j) {
    const Vec::F term = exponential(Vec::sub(Vec::mul(factor, Vec::load(p + j * stride)), max));
    sum = Vec::add(sum, term);
    Vec::store(p + j * stride, term);
  }
  const Vec::F share = Vec::div(Vec::all(1.0F), sum);
  for (size_t j = 0; j < count; ++j)
    Vec::store(p + j * stride, Vec::mul(share, Vec::load(p + j * stride)));
  float maxima[kLanes];
  float sums[kLanes];
  Vec::store(maxima, max);
  Vec::store(sums, sum);
  for (size_t c = 0; c < columns; ++c)
    log_sum[c] = maxima[c] + __builtin_logf(sums[c]);
}

/// One row of the gradient. Whole vectors are faster than parts of them, so what a store writes too much is written
/// again: columns are taken from the last ones on, and rows ascending. `kIsLast`: nothing behind the row is touched.
template <bool kIsLast>
TIDEPOOL_INLINE void softmax_gradient_row(const float* p, size_t columns, float scale, const float* log_sum,
                                          const float* delta, float* out) {
  const Vec::F factor = Vec::all(scale);
  for (size_t end = columns; end > 0;) {
    const size_t c = (end - 1) / kLanes * kLanes;
    const size_t lanes = kIsLast ? end - c : kLanes;
    const Vec::F probability =
        exponential(Vec::sub(Vec::mul(factor, Vec::load(p + c, lanes)), Vec::load(log_sum + c, end - c)));
    const Vec::F difference = Vec::sub(Vec::load(p + columns + c, lanes), Vec::load(delta + c, end - c));
    Vec::store(out + c, Vec::mul(Vec::mul(factor, probability), difference), lanes);
    Vec::store(out + columns + c, probability, lanes);
    end = c;
  }
}

inline void softmax_gradient_rows(const float* p, size_t count, size_t columns, float scale, const float* log_sum,
                                  const float* delta, float* out) {
  const size_t stride = gathered_stride(2 * columns);
  if (count == 0) return;
  for (size_t j = 0; j + 1 < count; ++j)
    softmax_gradient_row<false>(p + j * stride, columns, scale, log_sum, delta, out + j * stride);
  const size_t last = (count - 1) * stride;
  softmax_gradient_row<true>(p + last, columns, scale, log_sum, delta, out + last);
}

/// relu; a NaN stays one, because max gives its second operand then.
TIDEPOOL_INLINE Vec::F positive_part(Vec::F x) {
  return Vec::max(Vec::zero(), x);
}

/// Columns one after the other, kLanes at a time, each with its own sum: the order of sums is that of Vec::sum.
inline void relu_sum_rows(const float* p, size_t count, size_t columns, const float* weights, float* scores) {
  const size_t stride = gathered_stride(columns);
  for (size_t j = 0; j < count; ++j) {
    Vec::F sum = Vec::zero();
    for (size_t c = 0; c < columns; c += kLanes) {
      const Vec::F products = Vec::load(p + j * stride + c, columns - c);
      sum = Vec::fma(Vec::load(weights + c, columns - c), positive_part(products), sum);
    }
    scores[j] = Vec::sum(sum);
  }
}

inline void relu_gradient_rows(float* p, size_t count, size_t columns, const float* weights, const float* g,
                               float* weight_gradient) {
  const size_t stride = gathered_stride(columns);
  for (size_t c = 0; c < columns; c += kLanes) {
    const size_t rest = columns - c;
    const Vec::F weight = Vec::load(weights + c, rest);
    Vec::F sum = Vec::load(weight_gradient + c, rest);
    for (size_t j = 0; j < count; ++j) {
      float* products = p + j * stride + c;
      const Vec::F product = Vec::load(products, rest);
      const Vec::F gradient = Vec::all(g[j]);
      sum = Vec::fma(gradient, positive_part(product), sum);
      const Vec::F passed = Vec::where_at_least(product, Vec::zero(), Vec::mul(gradient, weight), product);
      // Whole vectors are faster; behind the columns there may be anything.
      Vec::store(products, Vec::where_at_least(Vec::zero(), product, Vec::zero(), passed));
    }
    Vec::store(weight_gradient + c, sum, rest);
  }
}

inline void lane_maxima_rows(const float* x, size_t segments, size_t length, float* maxima) {
  for (size_t segment = 0; segment < segments; ++segment) {
    for (size_t lane = 0; lane < kGatheredLanes; lane += kLanes) {
      const float* from = x + segment * length * kGatheredLanes + lane;
      Vec::F max = Vec::all(-__builtin_inff());
      // Of a NaN and another value max gives the second.
      for (size_t v = 0; v < length; ++v)
        max = Vec::max(Vec::load(from + v * kGatheredLanes), max);
      Vec::store(maxima + segment * kGatheredLanes + lane, max);
    }
  }
}

/// Values that one test tells apart from the rest: most have none that is large enough.
inline constexpr size_t kCollectStep = 16;

inline size_t collect_places(const float* x, size_t count, float least, uint32_t* places) {
  size_t found = 0;
  const auto test = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      places[found] = static_cast<uint32_t>(i);
      found += x[i] >= least ? 1 : 0;
    }
  };
  size_t begin = 0;
  for (; begin + kCollectStep <= count; begin += kCollectStep) {
    Vec::F max = Vec::all(-__builtin_inff());
    for (size_t i = 0; i < kCollectStep; i += kLanes)
      max = Vec::max(Vec::load(x + begin + i), max);
    if (Vec::largest(max) >= least) test(begin, begin + kCollectStep);
  }
  test(begin, count);
  return found;
}

/// Heads whose products with two vectors of keys sit in registers together.
inline constexpr size_t kScoreHeads = kLanes == 16 ? 8 : 4;

/// Two vectors of keys' scores.
struct ScorePair {
  Vec::F first;
  Vec::F second;
};

/// Adds the share of the heads at `q` and `weights`.
template <size_t... kHead>
TIDEPOOL_INLINE void add_heads(const float* q, const float* weights, size_t width, const float* panel,
                               ScorePair& scores, std::index_sequence<kHead...> /*heads*/) {
  Vec::F first[] = {(static_cast<void>(kHead), Vec::zero())...};
  Vec::F second[] = {(static_cast<void>(kHead), Vec::zero())...};
  for (size_t i = 0; i < width; ++i) {
    const Vec::F a = Vec::load(panel + i * kKeysPerPanel);
    const Vec::F b = Vec::load(panel + i * kKeysPerPanel + kLanes);
    const auto add = [&](size_t head, Vec::F& x, Vec::F& y) {
      const Vec::F factor = Vec::all(q[head * width + i]);
      x = Vec::fma(factor, a, x);
      y = Vec::fma(factor, b, y);
    };
    (add(kHead, first[kHead], second[kHead]), ...);
  }
  const auto weigh = [&](size_t head, Vec::F x, Vec::F y) {
    const Vec::F weight = Vec::all(weights[head]);
    scores.first = Vec::add(scores.first, Vec::mul(weight, positive_part(x)));
    scores.second = Vec::add(scores.second, Vec::mul(weight, positive_part(y)));
  };
  (weigh(kHead, first[kHead], second[kHead]), ...);
}

inline void score_panel(const PanelScoreArgs<float>& args, size_t row, const float* panel, float* out) {
  const float* q = args.q + row * args.heads * args.width;
  const float* weights = args.weights + row * args.heads;
  for (size_t key = 0; key < kKeysPerPanel; key += 2 * kLanes) {
    ScorePair scores{Vec::zero(), Vec::zero()};
    size_t head = 0;
    for (; head + kScoreHeads <= args.heads; head += kScoreHeads) {
      add_heads(q + head * args.width, weights + head, args.width, panel + key, scores,
                std::make_index_sequence<kScoreHeads>());
    }
    for (; head < args.heads; ++head) {
      add_heads(q + head * args.width, weights + head, args.width, panel + key, scores, std::make_index_sequence<1>());
    }
    Vec::store(out + key, scores.first);
    Vec::store(out + key + kLanes, scores.second);
  }
}

/// All rows meet a panel while it is in the first cache.
inline void score_panels(const PanelScoreArgs<float>& args) {
  for (size_t p = 0; p < args.panel_count; ++p) {
    for (size_t row = 0; row < args.rows; ++row) {
      score_panel(args, row, args.panels + p * args.width * kKeysPerPanel,
                  args.scores + row * args.scores_stride + p * kKeysPerPanel);
    }
  }
}

inline void products(const GatheredRows<float>& rows, const float* right, size_t columns, float* out) noexcept {
  gathered_products(rows, right, columns, out);
}
inline void sums(const GatheredRows<float>& rows, const float* weights, size_t weights_stride, size_t columns,
                 float* out) noexcept {
  gathered_sums(rows, weights, weights_stride, columns, out);
}
inline void spread(float* const* rows, size_t count, size_t width, const float* weights, size_t columns,
                   const float* left) noexcept {
  gathered_spread(rows, count, weights, {left, columns, width});
}
inline void softmax(float* p, size_t count, size_t columns, float scale, const float* sink, float* log_sum) noexcept {
  const size_t stride = gathered_stride(columns);
  for (size_t c = 0; c < columns; c += kLanes)
    softmax_columns(p + c, count, stride, smaller(kLanes, columns - c), scale, sink + c, log_sum + c);
}
inline void softmax_gradient(const float* p, size_t count, size_t columns, float scale, const float* log_sum,
                             const float* delta, float* out) noexcept {
  softmax_gradient_rows(p, count, columns, scale, log_sum, delta, out);
}
inline void relu_sums(const float* p, size_t count, size_t columns, const float* weights, float* scores) noexcept {
  relu_sum_rows(p, count, columns, weights, scores);
}
inline void relu_gradient(float* p, size_t count, size_t columns, const float* weights, const float* g,
                          float* weight_gradient) noexcept {
  relu_gradient_rows(p, count, columns, weights, g, weight_gradient);
}
inline void lane_maxima(const float* x, size_t segments, size_t length, float* maxima) noexcept {
  lane_maxima_rows(x, segments, length, maxima);
}
inline size_t collect(const float* x, size_t count, float least, uint32_t* places) noexcept {
  return collect_places(x, count, least, places);
}
inline void panel_scores(const PanelScoreArgs<float>& args) noexcept {
  score_panels(args);
}

constexpr GatheredKernels<float> gathered_table(std::string_view name) {
  return {.name = name,
          .products = products,
          .sums = sums,
          .spread = spread,
          .softmax = softmax,
          .softmax_gradient = softmax_gradient,
          .relu_sums = relu_sums,
          .relu_gradient = relu_gradient,
          .panel_scores = panel_scores,
          .lane_maxima = lane_maxima,
          .collect = collect};
}

}  // namespace
}  // namespace tidepool::kernels
