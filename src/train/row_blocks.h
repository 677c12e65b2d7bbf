#pragma once

#include <algorithm>
#include <cstddef>

#include "train/tape.h"

namespace tidepool {

/// body(begin, end) for blocks of rows that together are [0, rows), over the tape's threads. `row_cost` is the work on
/// a row in operations; blocks are large enough to be worth handing over. What body computes may not depend on where
/// blocks end.
template <typename Real, typename Body>
void for_row_blocks(const Tape<Real>& tape, size_t rows, size_t row_cost, const Body& body) {
  constexpr size_t kBlockCost = 20'000;  // some 10 us
  const size_t block = std::max<size_t>(1, kBlockCost / std::max<size_t>(1, row_cost));
  const size_t count = (rows + block - 1) / block;
  if (count == 1) return body(size_t{0}, rows);
  tape.pool().run(count, [&](size_t index, size_t) { body(index * block, std::min(rows, (index + 1) * block)); });
}

/// The same over columns, for sums over rows: a thread adds up all rows for its columns, in ascending order. Blocks are
/// multiples of a cache line.
template <typename Real, typename Body>
void for_column_blocks(const Tape<Real>& tape, size_t rows, size_t cols, const Body& body) {
  constexpr size_t kLine = 64 / sizeof(float);
  const size_t lines = (cols + kLine - 1) / kLine;
  for_row_blocks(tape, lines, rows * kLine,
                 [&](size_t begin, size_t end) { body(begin * kLine, std::min(cols, end * kLine)); });
}

/// body(row, worker) for rows [begin, end) that are some microseconds of work each.
template <typename Real, typename Body>
void for_rows(const Tape<Real>& tape, size_t begin, size_t end, const Body& body) {
  constexpr size_t kRows = 8;
  tape.pool().run((end - begin + kRows - 1) / kRows, [&](size_t job, size_t worker) {
    const size_t first = begin + job * kRows;
    for (size_t row = first; row < std::min(end, first + kRows); ++row)
      body(row, worker);
  });
}

}  // namespace tidepool
