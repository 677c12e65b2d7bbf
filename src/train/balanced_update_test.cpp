#include "train/balanced_update.h"

#include <gtest/gtest.h>

#include <cmath>

#include "train/gradient_check.h"

namespace tidepool {
namespace {

double row_rms(std::span<const float> row) {
  double squares = 0;
  for (const float value : row)
    squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares / static_cast<double>(row.size()));
}

TEST(BalancedUpdate, RowsHaveRmsOneAndSmallRowsAreZero) {
  TestRandom random(1);
  Leaf<float> leaf(random, 100, 70);
  const Span2d<float> update = leaf.value().data;
  for (float& value : update.row(7))
    value *= 1e-4F;
  std::ranges::fill(update.row(8), 0.0F);
  ThreadPool pool(2);
  balance_rows_and_columns(pool, update);
  for (size_t row = 0; row < update.rows; ++row)
    EXPECT_NEAR(row_rms(update.row(row)), row == 7 || row == 8 ? 0 : 1, 1e-6) << row;
}

TEST(BalancedUpdate, ColumnsEndBalanced) {
  TestRandom random(2);
  Leaf<float> leaf(random, 60, 40);
  const Span2d<float> update = leaf.value().data;
  for (size_t row = 0; row < update.rows; ++row)
    update.at(row, 3) *= 50;  // a column that outweighs the others
  ThreadPool pool(2);
  balance_rows_and_columns(pool, update);
  for (size_t col = 0; col < update.cols; ++col) {
    double squares = 0;
    for (size_t row = 0; row < update.rows; ++row)
      squares += std::pow(static_cast<double>(update.at(row, col)), 2);
    EXPECT_NEAR(std::sqrt(squares / 60), 1, 0.01) << col;
  }
}

TEST(BalancedUpdate, DoesNotDependOnTheScaleOfRows) {
  TestRandom random(3);
  Leaf<float> a(random, 10, 20);
  Leaf<float> b(10, 20);
  for (size_t i = 0; i < a.data().size(); ++i)
    b.data()[i] = a.data()[i] * (i / 20 == 4 ? 8.0F : 0.5F);
  ThreadPool pool(1);
  balance_rows_and_columns(pool, a.value().data);
  balance_rows_and_columns(pool, b.value().data);
  for (size_t i = 0; i < a.data().size(); ++i)
    EXPECT_NEAR(a.data()[i], b.data()[i], 1e-5);
}

}  // namespace
}  // namespace tidepool
