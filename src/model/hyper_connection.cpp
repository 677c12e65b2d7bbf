#include "model/hyper_connection.h"

#include <algorithm>
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

HyperConnectionMix hyper_connection_mix(const Math& math, const HyperConnectionConfig& config,
                                        const HyperConnectionWeights& weights, const ForwardPass& pass) {
  Arena& arena = *pass.arena;
  const size_t n = config.streams;
  HyperConnectionMix mix{arena.matrix(pass.rows, n), arena.matrix(pass.rows, n), arena.matrix(pass.rows, n * n)};
  const Arena::Scope scope(arena);
  const Span2d<float> products = arena.matrix(pass.rows, 2 * n + n * n);
  math.linear_unrounded(weights.fn, pass.stream, products);
  math.for_rows(pass.rows, [&](size_t row, size_t) {
    const std::span<const float> x = pass.stream.row(row);
    float squares = 0;
    for (const float value : x)
      squares += value * value;
    const float inverse_rms = 1.0F / std::sqrt(squares / static_cast<float>(x.size()) + config.norm_eps);
    for (float& product : products.row(row))
      product *= inverse_rms;
    split_mix(config, products.row(row), weights.scale, weights.base, mix.pre.row(row), mix.post.row(row),
              mix.comb.row(row));
  });
  return mix;
}

void collapse_streams(const Math& math, const HyperConnectionConfig& config, Span2d<const float> stream,
                      Span2d<const float> pre, Span2d<float> out) {
  math.for_rows(out.rows, [&](size_t row, size_t) {
    math.kernels().hc_collapse(stream.row(row).data(), pre.row(row).data(), config.streams, config.hidden,
                               out.row(row).data());
    math.round(out.row(row));
  });
}

void expand_streams(const Math& math, const HyperConnectionConfig& config, const HyperConnectionMix& mix,
                    Span2d<const float> y, Span2d<float> stream) {
  math.for_rows(y.rows, [&](size_t row, size_t) {
    math.kernels().hc_expand(stream.row(row).data(), y.row(row).data(), mix.post.row(row).data(),
                             mix.comb.row(row).data(), config.streams, config.hidden);
    math.round(stream.row(row));
  });
}

}  // namespace tidepool
