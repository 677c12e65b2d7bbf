#include "train/balanced_update.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tidepool {

namespace {

constexpr int kSteps = 11;
constexpr double kLeastShare = 1e-3;
constexpr double kEpsilon = 1e-20;
constexpr size_t kBlock = 64;  ///< rows or columns a task

template <typename Body>
void for_blocks(ThreadPool& pool, size_t count, const Body& body) {
  pool.run((count + kBlock - 1) / kBlock,
           [&](size_t index, size_t) { body(index * kBlock, std::min(count, (index + 1) * kBlock)); });
}

double row_norm(std::span<const float> row) {
  double squares = 0;
  for (const float value : row)
    squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

void clear_small_rows(ThreadPool& pool, const Span2d<float>& update) {
  std::vector<double> norms(update.rows);
  for_blocks(pool, update.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      norms[row] = row_norm(update.row(row));
  });
  double sum = 0;
  for (const double norm : norms)
    sum += norm;
  const double least = kLeastShare * sum / static_cast<double>(update.rows);
  for (size_t row = 0; row < update.rows; ++row) {
    if (norms[row] <= least) std::ranges::fill(update.row(row), 0.0F);
  }
}

void normalise_rows(ThreadPool& pool, const Span2d<float>& update) {
  for_blocks(pool, update.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const auto factor = static_cast<float>(1 / (row_norm(update.row(row)) + kEpsilon));
      for (float& value : update.row(row))
        value *= factor;
    }
  });
}

/// A task has some columns and adds up all rows, in order.
void normalise_columns(ThreadPool& pool, const Span2d<float>& update) {
  for_blocks(pool, update.cols, [&](size_t begin, size_t end) {
    double squares[kBlock] = {};
    for (size_t row = 0; row < update.rows; ++row) {
      const float* values = update.row(row).data() + begin;
      for (size_t i = 0; i < end - begin; ++i)
        squares[i] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    float factors[kBlock];
    std::ranges::transform(squares, factors,
                           [](double sum) { return static_cast<float>(1 / (std::sqrt(sum) + kEpsilon)); });
    for (size_t row = 0; row < update.rows; ++row) {
      float* values = update.row(row).data() + begin;
      for (size_t i = 0; i < end - begin; ++i)
        values[i] *= factors[i];
    }
  });
}

}  // namespace

void balance_rows_and_columns(ThreadPool& pool, Span2d<float> update) {
  clear_small_rows(pool, update);
  for (int step = 0; step < kSteps; ++step)
    step % 2 == 0 ? normalise_rows(pool, update) : normalise_columns(pool, update);
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(update.cols)));
  for_blocks(pool, update.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      for (float& value : update.row(row))
        value *= scale;
    }
  });
}

}  // namespace tidepool
