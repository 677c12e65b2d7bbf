#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "train/tape.h"

namespace tidepool {

/// e^(x[i] - max x) in place; returns their sum and that maximum. The engine's kernel for float, plain for double.
struct SoftmaxSum {
  double sum;
  double largest;
};
[[nodiscard]] inline SoftmaxSum softmax_terms(const Tape<float>& tape, std::span<float> x) {
  const float largest = *std::ranges::max_element(x);
  return {tape.kernels().softmax_terms(x.data(), x.size(), 1.0F), largest};
}
[[nodiscard]] inline SoftmaxSum softmax_terms(const Tape<double>& /*tape*/, std::span<double> x) {
  const double largest = *std::ranges::max_element(x);
  double sum = 0;
  for (double& value : x) {
    value = std::exp(value - largest);
    sum += value;
  }
  return {sum, largest};
}

template <typename Real>
[[nodiscard]] Real sigmoid(Real x) {
  return 1 / (1 + std::exp(-x));
}

template <typename Real>
[[nodiscard]] Real dot(std::span<const Real> a, std::span<const Real> b) {
  // Eight sums side by side, so that they are vector instructions; in a fixed order.
  constexpr size_t kLanes = 8;
  Real sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += a[i + lane] * b[i + lane];
  }
  Real sum = 0;
  for (; i < a.size(); ++i)
    sum += a[i] * b[i];
  for (const Real lane : sums)
    sum += lane;
  return sum;
}

/// y += factor * x.
template <typename Real>
void add_scaled(std::span<Real> y, Real factor, std::span<const Real> x) {
  for (size_t i = 0; i < y.size(); ++i)
    y[i] += factor * x[i];
}

}  // namespace tidepool
