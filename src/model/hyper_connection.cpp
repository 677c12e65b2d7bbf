#include "model/hyper_connection.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tidepool {

namespace {

float sigmoid(float x) {
  return 1.0F / (1.0F + std::exp(-x));
}

void normalise_rows(std::span<float> comb, size_t n, float eps) {
  for (size_t j = 0; j < n; ++j) {
    float sum = 0;
    for (size_t k = 0; k < n; ++k)
      sum += comb[j * n + k];
    for (size_t k = 0; k < n; ++k)
      comb[j * n + k] /= sum + eps;
  }
}

void normalise_columns(std::span<float> comb, size_t n, float eps) {
  for (size_t k = 0; k < n; ++k) {
    float sum = 0;
    for (size_t j = 0; j < n; ++j)
      sum += comb[j * n + k];
    for (size_t j = 0; j < n; ++j)
      comb[j * n + k] /= sum + eps;
  }
}

void softmax_rows(std::span<float> comb, size_t n) {
  for (size_t j = 0; j < n; ++j) {
    const std::span<float> row = comb.subspan(j * n, n);
    const float largest = *std::ranges::max_element(row);
    float sum = 0;
    for (float& value : row) {
      value = std::exp(value - largest);
      sum += value;
    }
    for (float& value : row)
      value /= sum;
  }
}

}  // namespace

void split_mix(const HyperConnectionConfig& config, std::span<const float> products, const float* scale,
               const float* base, std::span<float> pre, std::span<float> post, std::span<float> comb) {
  const size_t n = config.streams;
  for (size_t j = 0; j < n; ++j) {
    pre[j] = sigmoid(products[j] * scale[0] + base[j]) + config.eps;
    post[j] = 2.0F * sigmoid(products[n + j] * scale[1] + base[n + j]);
  }
  for (size_t i = 0; i < n * n; ++i)
    comb[i] = products[2 * n + i] * scale[2] + base[2 * n + i];
  softmax_rows(comb, n);
  for (float& value : comb)
    value += config.eps;
  normalise_columns(comb, n, config.eps);
  for (int64_t iteration = 1; iteration < config.sinkhorn_iterations; ++iteration) {
    normalise_rows(comb, n, config.eps);
    normalise_columns(comb, n, config.eps);
  }
}

namespace {

/// Rows whose streams, 320 KiB of four at the released width, stay in the second cache from one step to the next.
constexpr size_t kTileRows = 4;

size_t product_count(size_t streams) {
  return 2 * streams + streams * streams;
}

/// Of each of up to kTileRows rows, its squares added up one after the other. Four rows at a time hide the latency of
/// the additions.
std::array<float, kTileRows> sums_of_squares(Span2d<const float> rows) {
  std::array<float, kTileRows> sums{};
  if (rows.rows == kTileRows) {
    static_assert(kTileRows == 4);
    const float* const x[] = {rows.row(0).data(), rows.row(1).data(), rows.row(2).data(), rows.row(3).data()};
    for (size_t i = 0; i < rows.cols; ++i) {
      sums[0] += x[0][i] * x[0][i];
      sums[1] += x[1][i] * x[1][i];
      sums[2] += x[2][i] * x[2][i];
      sums[3] += x[3][i] * x[3][i];
    }
    return sums;
  }
  for (size_t row = 0; row < rows.rows; ++row) {
    for (const float value : rows.row(row))
      sums[row] += value * value;
  }
  return sums;
}

/// From the products of a row's streams with F, not yet normalised, and the sum of their squares to the row's mix.
void mix_row(const HyperConnectionConfig& config, const HyperConnectionWeights& weights, float squares,
             std::span<float> products, const HyperConnectionMix& mix, size_t row) {
  const auto count = static_cast<float>(config.streams * config.hidden);
  const float inverse_rms = 1.0F / std::sqrt(squares / count + config.norm_eps);
  for (float& product : products)
    product *= inverse_rms;
  split_mix(config, products, weights.scale, weights.base, mix.pre.row(row), mix.post.row(row), mix.comb.row(row));
}

void collapse_row(const Math& math, const HyperConnectionConfig& config, std::span<const float> stream,
                  std::span<const float> pre, std::span<float> out) {
  math.kernels().hc_collapse(stream.data(), pre.data(), config.streams, config.hidden, out.data());
  math.round(out);
}

void expand_row(const Math& math, const HyperConnectionConfig& config, const HyperConnectionMix& mix, size_t row,
                std::span<const float> y, std::span<float> stream) {
  math.kernels().hc_expand(stream.data(), y.data(), mix.post.row(row).data(), mix.comb.row(row).data(), config.streams,
                           config.hidden);
  math.round(stream);
}

void leave_row(const Math& math, const HyperConnectionConfig& config, const ForwardPass& pass,
               const StreamCrossing& way, size_t row) {
  if (way.left == nullptr) return;
  expand_row(math, config, *way.left, row, way.y.row(row), pass.stream.row(row));
  std::ranges::copy(way.left->pre.row(row), pass.pre_mix.row(row).begin());
}

/// Rows [begin, begin + products.rows), of a tile.
void enter_rows(const Math& math, const HyperConnectionConfig& config, const ForwardPass& pass,
                const StreamCrossing& way, size_t begin, Span2d<float> products) {
  const std::array<float, kTileRows> squares = sums_of_squares(pass.stream.row_range(begin, products.rows));
  for (size_t r = 0; r < products.rows; ++r) {
    const size_t row = begin + r;
    mix_row(config, *way.weights, squares[r], products.row(r), *way.entered, row);
    if (way.has_own_mix) std::ranges::copy(way.entered->pre.row(row), pass.pre_mix.row(row).begin());
    collapse_row(math, config, pass.stream.row(row), pass.pre_mix.row(row), way.x.row(row));
  }
}

}  // namespace

void cross_streams(const Math& math, const HyperConnectionConfig& config, const ForwardPass& pass,
                   const StreamCrossing& way) {
  if (way.entered == nullptr) {
    math.for_rows(pass.rows, [&](size_t row, size_t) { leave_row(math, config, pass, way, row); });
    return;
  }
  const Arena::Scope scope(*pass.arena);
  const Span2d<float> products = pass.arena->matrix(pass.rows, product_count(config.streams));
  if (pass.rows < kTileRows * math.workers()) {
    // F is what takes time then, and is divided among the threads.
    math.for_rows(pass.rows, [&](size_t row, size_t) { leave_row(math, config, pass, way, row); });
    math.linear_unrounded(way.weights->fn, pass.stream, products);
    math.for_rows(pass.rows,
                  [&](size_t row, size_t) { enter_rows(math, config, pass, way, row, products.row_range(row, 1)); });
    return;
  }
  math.for_rows((pass.rows + kTileRows - 1) / kTileRows, [&](size_t tile, size_t) {
    const size_t begin = tile * kTileRows;
    const size_t count = std::min(kTileRows, pass.rows - begin);
    for (size_t row = begin; row < begin + count; ++row)
      leave_row(math, config, pass, way, row);
    const Span2d<float> its_products = products.row_range(begin, count);
    linear_range(math.kernels(), {way.weights->fn, pass.stream.row_range(begin, count), its_products}, 0,
                 its_products.cols);
    enter_rows(math, config, pass, way, begin, its_products);
  });
}

void settle_streams(const Math& math, const HyperConnectionConfig& config, ForwardPass& pass) {
  if (!pass.lacks_output) return;
  cross_streams(math, config, pass, {.left = &pass.output.mix, .y = pass.output.y});
  pass.lacks_output = false;
}

HyperConnectionMix hyper_connection_mix(const Math& math, const HyperConnectionConfig& config,
                                        const HyperConnectionWeights& weights, const ForwardPass& pass) {
  HyperConnectionMix mix = make_mix(*pass.arena, pass.rows, config.streams);
  const Arena::Scope scope(*pass.arena);
  const Span2d<float> products = pass.arena->matrix(pass.rows, product_count(config.streams));
  math.linear_unrounded(weights.fn, pass.stream, products);
  math.for_rows(pass.rows, [&](size_t row, size_t) {
    const float squares = sums_of_squares(pass.stream.row_range(row, 1))[0];
    mix_row(config, weights, squares, products.row(row), mix, row);
  });
  return mix;
}

void collapse_streams(const Math& math, const HyperConnectionConfig& config, Span2d<const float> stream,
                      Span2d<const float> pre, Span2d<float> out) {
  math.for_rows(out.rows,
                [&](size_t row, size_t) { collapse_row(math, config, stream.row(row), pre.row(row), out.row(row)); });
}

void expand_streams(const Math& math, const HyperConnectionConfig& config, const HyperConnectionMix& mix,
                    Span2d<const float> y, Span2d<float> stream) {
  math.for_rows(y.rows, [&](size_t row, size_t) { expand_row(math, config, mix, row, y.row(row), stream.row(row)); });
}

}  // namespace tidepool
