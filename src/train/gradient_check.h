#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/tape.h"

// For tests: derivatives compared with finite differences, in double.

namespace tidepool {

/// splitmix64: the same numbers everywhere.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  }
  size_t below(size_t count) { return static_cast<size_t>(bits() % count); }
  /// Uniform in [-1, 1).
  double value() { return std::ldexp(static_cast<double>(bits() >> 11U), -52) - 1; }

 private:
  uint64_t state_;
};

/// A Value with memory of its own: a leaf, as a parameter is one.
template <typename Real>
class Leaf {
 public:
  Leaf(size_t rows, size_t cols) : data_(rows * cols), grad_(rows * cols), rows_(rows), cols_(cols) {}
  /// Uniform in [-scale, scale).
  Leaf(TestRandom& random, size_t rows, size_t cols, double scale = 1) : Leaf(rows, cols) {
    for (Real& value : data_)
      value = static_cast<Real>(random.value() * scale);
  }
  [[nodiscard]] Value<Real> value() { return {{data_.data(), rows_, cols_}, {grad_.data(), rows_, cols_}}; }
  operator Value<Real>() { return value(); }  // NOLINT(*-explicit-*): what operators take
  std::vector<Real>& data() { return data_; }
  std::vector<Real>& grad() { return grad_; }

 private:
  std::vector<Real> data_;
  std::vector<Real> grad_;
  size_t rows_;
  size_t cols_;
};

/// What the gradients of one operator are checked with. The loss is the sum of its results' values, each times a number
/// from `seed`, and of what `loss` returns.
struct GradientCheck {
  /// Runs the operator; returns what the loss is made of. Null for none.
  std::function<std::vector<Value<double>>(Tape<double>&)> run{};
  /// Runs an operator that is a loss: returns it, and goes back by itself. Null for none.
  std::function<double(Tape<double>&)> loss{};
  /// What the derivatives are taken by, with names for messages. Gradients need not be zero at the start.
  std::vector<std::pair<std::string, Value<double>>> inputs = {};
  /// Entries tried of each input; all when it has no more.
  size_t entries = 40;
  /// A central difference is off by h^2 / 6 of the third derivative and by the rounding of the loss over h: with losses
  /// and derivatives of order 1 that is 1e-11 each.
  double step = 1e-5;
  /// Times the larger of 1 and the derivative.
  double tolerance = 1e-7;
  uint64_t seed = 99;
};

inline double weighted_sum(const std::vector<Value<double>>& results, uint64_t seed) {
  TestRandom random(seed);
  double sum = 0;
  for (const Value<double>& result : results) {
    for (size_t row = 0; row < result.rows(); ++row) {
      for (const double value : result.data.row(row))
        sum += value * random.value();
    }
  }
  return sum;
}

/// Runs what is checked; returns its results and its own loss.
inline std::pair<std::vector<Value<double>>, double> run_forward(const GradientCheck& check, Tape<double>& tape) {
  std::vector<Value<double>> results;
  if (check.run) results = check.run(tape);
  return {results, check.loss ? check.loss(tape) : 0.0};
}

inline void run_backward(const GradientCheck& check, Tape<double>& tape) {
  const std::vector<Value<double>> results = run_forward(check, tape).first;
  TestRandom random(check.seed);
  for (const Value<double>& result : results) {
    for (size_t row = 0; row < result.rows(); ++row) {
      for (double& value : result.grad.row(row))
        value += random.value();
    }
  }
  tape.backward();
}

inline double loss_of(const GradientCheck& check, ThreadPool& pool) {
  Tape<double> tape(pool, Tape<double>::Mode::kForward);
  const auto [results, loss] = run_forward(check, tape);
  return weighted_sum(results, check.seed) + loss;
}

/// Compares the gradient of each input with central differences. Gradients are cleared before.
inline void expect_gradients(const GradientCheck& check) {
  ThreadPool pool(2);
  for (const auto& [name, input] : check.inputs) {
    for (size_t row = 0; row < input.rows(); ++row)
      std::ranges::fill(input.grad.row(row), 0.0);
  }
  Tape<double> tape(pool, Tape<double>::Mode::kTraining);
  run_backward(check, tape);
  TestRandom random(check.seed + 1);
  for (const auto& [name, input] : check.inputs) {
    const size_t count = input.rows() * input.cols();
    for (size_t i = 0; i < std::min(count, check.entries); ++i) {
      const size_t entry = count <= check.entries ? i : random.below(count);
      double& value = input.data.at(entry / input.cols(), entry % input.cols());
      const double before = value;
      value = before + check.step;
      const double above = loss_of(check, pool);
      value = before - check.step;
      const double below = loss_of(check, pool);
      value = before;
      const double difference = (above - below) / (2 * check.step);
      const double gradient = input.grad.at(entry / input.cols(), entry % input.cols());
      EXPECT_NEAR(gradient, difference, check.tolerance * std::max(1.0, std::fabs(difference)))
          << name << "[" << entry / input.cols() << ", " << entry % input.cols() << "]";
    }
  }
}

}  // namespace tidepool
