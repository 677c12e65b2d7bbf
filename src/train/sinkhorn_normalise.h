#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace tidepool {

/// A small matrix [n, n] made doubly stochastic, and the way back: softmax of rows, + eps, columns, and then rows and
/// columns in turn, each divided by (its sum + eps). (docs/numerics.md, "Hyper-connections")
template <typename Real>
class SinkhornNormaliser {
 public:
  SinkhornNormaliser(size_t n, size_t iterations, Real eps)
      : n_(n), eps_(eps), steps_(2 * iterations - 1), states_((steps_ + 1) * n * n), sums_(steps_ * n), terms_(n * n) {}

  /// In place.
  void forward(std::span<Real> comb) {
    softmax_rows(comb);
    std::ranges::copy(comb, terms_.begin());
    for (Real& value : comb)
      value += eps_;
    for (size_t step = 0; step < steps_; ++step) {
      const std::span<Real> sums = sums_of(step);
      for (size_t line = 0; line < n_; ++line) {
        Real sum = 0;
        for (size_t i = 0; i < n_; ++i)
          sum += comb[place(step, line, i)];
        sums[line] = sum + eps_;
        for (size_t i = 0; i < n_; ++i)
          comb[place(step, line, i)] /= sums[line];
      }
      std::ranges::copy(comb, state_of(step).begin());
    }
  }

  /// From the gradient of the result of the last forward() to that of its argument, in place.
  void backward(std::span<Real> grad) {
    // y = x / (sum x + eps) on a line:  dx = (dy - y . dy) / (sum x + eps).
    for (size_t step = steps_; step-- > 0;) {
      const std::span<const Real> y = state_of(step);
      for (size_t line = 0; line < n_; ++line) {
        Real along = 0;
        for (size_t i = 0; i < n_; ++i)
          along += y[place(step, line, i)] * grad[place(step, line, i)];
        for (size_t i = 0; i < n_; ++i) {
          Real& value = grad[place(step, line, i)];
          value = (value - along) / sums_of(step)[line];
        }
      }
    }
    for (size_t row = 0; row < n_; ++row) {
      Real along = 0;
      for (size_t i = row * n_; i < (row + 1) * n_; ++i)
        along += terms_[i] * grad[i];
      for (size_t i = row * n_; i < (row + 1) * n_; ++i)
        grad[i] = terms_[i] * (grad[i] - along);
    }
  }

 private:
  /// Value `i` of a line: even steps go over columns, odd ones over rows.
  [[nodiscard]] size_t place(size_t step, size_t line, size_t i) const {
    return step % 2 == 0 ? i * n_ + line : line * n_ + i;
  }
  [[nodiscard]] std::span<Real> state_of(size_t step) { return std::span(states_).subspan(step * n_ * n_, n_ * n_); }
  [[nodiscard]] std::span<Real> sums_of(size_t step) { return std::span(sums_).subspan(step * n_, n_); }

  void softmax_rows(std::span<Real> comb) const {
    for (size_t row = 0; row < n_; ++row) {
      const std::span<Real> line = comb.subspan(row * n_, n_);
      const Real largest = *std::ranges::max_element(line);
      Real sum = 0;
      for (Real& value : line) {
        value = std::exp(value - largest);
        sum += value;
      }
      for (Real& value : line)
        value /= sum;
    }
  }

  size_t n_;
  Real eps_;
  size_t steps_;
  std::vector<Real> states_;  ///< [steps, n, n], behind each step
  std::vector<Real> sums_;    ///< [steps, n], what each line was divided by
  std::vector<Real> terms_;   ///< [n, n], behind the softmax
};

}  // namespace tidepool
