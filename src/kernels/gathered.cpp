#include "kernels/gathered.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/gathered_kernels_internal.h"
#include "kernels/kernel_table.h"

namespace tidepool::kernels {
namespace {

template <typename Real>
void products(const GatheredRows<Real>& rows, const Real* right, size_t columns, Real* out) noexcept {
  const size_t stride = gathered_stride(columns);
  for (size_t j = 0; j < rows.count; ++j) {
    Real* sums = out + j * stride;
    std::fill_n(sums, stride, Real{0});
    for (size_t i = 0; i < rows.width; ++i) {
      for (size_t c = 0; c < columns; ++c)
        sums[c] += rows.rows[j][i] * right[i * stride + c];
    }
  }
}

template <typename Real>
void sums(const GatheredRows<Real>& rows, const Real* weights, size_t weights_stride, size_t columns,
          Real* out) noexcept {
  std::fill_n(out, columns * rows.width, Real{0});
  for (size_t j = 0; j < rows.count; ++j) {
    for (size_t c = 0; c < columns; ++c) {
      for (size_t i = 0; i < rows.width; ++i)
        out[c * rows.width + i] += weights[j * weights_stride + c] * rows.rows[j][i];
    }
  }
}

template <typename Real>
void spread(Real* const* rows, size_t count, size_t width, const Real* weights, size_t columns,
            const Real* left) noexcept {
  const size_t stride = gathered_stride(columns);
  for (size_t j = 0; j < count; ++j) {
    for (size_t c = 0; c < columns; ++c) {
      for (size_t i = 0; i < width; ++i)
        rows[j][i] += weights[j * stride + c] * left[c * width + i];
    }
  }
}

template <typename Real>
void softmax(Real* p, size_t count, size_t columns, Real scale, const Real* sink, Real* log_sum) noexcept {
  const size_t stride = gathered_stride(columns);
  for (size_t c = 0; c < columns; ++c) {
    Real max = sink[c];
    for (size_t j = 0; j < count; ++j)
      max = std::max(max, scale * p[j * stride + c]);
    Real sum = std::exp(sink[c] - max);
    for (size_t j = 0; j < count; ++j)
      sum += std::exp(scale * p[j * stride + c] - max);
    log_sum[c] = max + std::log(sum);
    for (size_t j = 0; j < count; ++j)
      p[j * stride + c] = std::exp(scale * p[j * stride + c] - log_sum[c]);
  }
}

template <typename Real>
void softmax_gradient(const Real* p, size_t count, size_t columns, Real scale, const Real* log_sum, const Real* delta,
                      Real* out) noexcept {
  const size_t stride = gathered_stride(2 * columns);
  for (size_t j = 0; j < count; ++j) {
    for (size_t c = 0; c < columns; ++c) {
      const Real probability = std::exp(scale * p[j * stride + c] - log_sum[c]);
      out[j * stride + c] = scale * probability * (p[j * stride + columns + c] - delta[c]);
      out[j * stride + columns + c] = probability;
    }
  }
}

template <typename Real>
void relu_sums(const Real* p, size_t count, size_t columns, const Real* weights, Real* scores) noexcept {
  for (size_t j = 0; j < count; ++j) {
    scores[j] = 0;
    for (size_t c = 0; c < columns; ++c)
      scores[j] += weights[c] * std::max(p[j * gathered_stride(columns) + c], Real{0});
  }
}

template <typename Real>
void relu_gradient(Real* p, size_t count, size_t columns, const Real* weights, const Real* g,
                   Real* weight_gradient) noexcept {
  for (size_t j = 0; j < count; ++j) {
    for (size_t c = 0; c < columns; ++c) {
      Real& product = p[j * gathered_stride(columns) + c];
      weight_gradient[c] += g[j] * std::max(product, Real{0});
      if (product <= 0) product = 0;
      if (product > 0) product = g[j] * weights[c];  // a NaN stays one
    }
  }
}

template <typename Real>
void lane_maxima(const Real* x, size_t segments, size_t length, Real* maxima) noexcept {
  for (size_t i = 0; i < segments * kGatheredLanes; ++i) {
    const Real* lane = x + i / kGatheredLanes * length * kGatheredLanes + i % kGatheredLanes;
    maxima[i] = -std::numeric_limits<Real>::infinity();
    for (size_t v = 0; v < length; ++v)
      maxima[i] = std::max(maxima[i], lane[v * kGatheredLanes]);
  }
}

template <typename Real>
size_t collect(const Real* x, size_t count, Real least, uint32_t* places) noexcept {
  size_t found = 0;
  for (size_t i = 0; i < count; ++i) {
    if (x[i] >= least) places[found++] = static_cast<uint32_t>(i);
  }
  return found;
}

template <typename Real>
void panel_scores(const PanelScoreArgs<Real>& args) noexcept {
  for (size_t row = 0; row < args.rows; ++row) {
    for (size_t key = 0; key < args.panel_count * kKeysPerPanel; ++key) {
      const Real* panel = args.panels + key / kKeysPerPanel * args.width * kKeysPerPanel + key % kKeysPerPanel;
      Real score = 0;
      for (size_t head = 0; head < args.heads; ++head) {
        const Real* q = args.q + (row * args.heads + head) * args.width;
        Real product = 0;
        for (size_t i = 0; i < args.width; ++i)
          product += q[i] * panel[i * kKeysPerPanel];
        score += std::max(product, Real{0}) * args.weights[row * args.heads + head];
      }
      args.scores[row * args.scores_stride + key] = score;
    }
  }
}

template <typename Real>
constexpr GatheredKernels<Real> kReferenceGathered = {
    .name = "reference",
    .products = products<Real>,
    .sums = sums<Real>,
    .spread = spread<Real>,
    .softmax = softmax<Real>,
    .softmax_gradient = softmax_gradient<Real>,
    .relu_sums = relu_sums<Real>,
    .relu_gradient = relu_gradient<Real>,
    .panel_scores = panel_scores<Real>,
    .lane_maxima = lane_maxima<Real>,
    .collect = collect<Real>,
};

/// Filled once, at first use; immutable afterwards, as the kernel table.
struct AvailableGathered {
  std::array<const GatheredKernels<float>*, 3> kernels{};
  size_t count = 0;
};

bool is_available(std::string_view name) {
  return std::ranges::any_of(available_kernels(), [&](const KernelTable* table) { return table->name == name; });
}

const AvailableGathered& available_gathered() {
  static const AvailableGathered result = [] {
    AvailableGathered found;
    if (is_available("avx512")) found.kernels[found.count++] = &kAvx512Gathered;
    if (is_available("avx2")) found.kernels[found.count++] = &kAvx2Gathered;
    found.kernels[found.count++] = &kReferenceGathered<float>;
    return found;
  }();
  return result;
}

}  // namespace

template <typename Real>
const GatheredKernels<Real>& reference_gathered_kernels() {
  return kReferenceGathered<Real>;
}
template const GatheredKernels<float>& reference_gathered_kernels();
template const GatheredKernels<double>& reference_gathered_kernels();

std::span<const GatheredKernels<float>* const> available_gathered_kernels() {
  return {available_gathered().kernels.data(), available_gathered().count};
}

template <>
const GatheredKernels<float>& gathered_kernels() {
  return *available_gathered().kernels.front();
}
template <>
const GatheredKernels<double>& gathered_kernels() {
  return kReferenceGathered<double>;
}

}  // namespace tidepool::kernels
