#include "base/span2d.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

namespace tidepool {
namespace {

/// 0..11 as three rows of four.
std::array<int, 12> numbers() {
  std::array<int, 12> values{};
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST(Span2d, RowsAndColumnsKeepTheStride) {
  std::array<int, 12> values = numbers();
  const Span2d<int> whole(values.data(), 3, 4);
  const Span2d<int> inner = whole.row_range(1, 2).col_range(1, 2);
  EXPECT_EQ(inner.rows, 2U);
  EXPECT_EQ(inner.cols, 2U);
  EXPECT_EQ(inner.at(0, 0), 5);
  EXPECT_EQ(inner.at(1, 1), 10);
  EXPECT_EQ(inner.row(1).size(), 2U);
}

TEST(Span2d, WritesThroughToTheOwner) {
  std::array<int, 12> values = numbers();
  const Span2d<int> view(values.data(), 3, 4);
  view.at(2, 3) = 99;
  EXPECT_EQ(values[11], 99);
  const Span2d<const int> read_only = view;
  EXPECT_EQ(read_only.at(2, 3), 99);
}

TEST(Span2d, RangesMayBeEmpty) {
  std::array<int, 12> values = numbers();
  const Span2d<int> view(values.data(), 3, 4);
  EXPECT_EQ(view.row_range(3, 0).rows, 0U);
  EXPECT_EQ(view.col_range(4, 0).cols, 0U);
}

}  // namespace
}  // namespace tidepool
