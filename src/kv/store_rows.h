#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/kv_layout.h"

/// Compression of packed rows: codes and scales alternate in every row and have nothing in common, so each kind is
/// compressed by itself. (docs/kv_store.md, "Compression")
namespace tidepool::store {

/// Rows of one kind that lie one after the other: codes, then scales.
struct RowRun {
  uint32_t rows = 0;
  uint16_t row_bytes = 0;
  uint16_t code_bytes = 0;  ///< of row_bytes
};

/// The rows of a block, in the order in which they lie there. Empty when one of its formats has no codes and scales.
[[nodiscard]] std::vector<RowRun> rows_of(const KvLayout& layout);

/// `payload` compressed, with what is needed to expand it; nothing when `runs` do not cover it exactly.
[[nodiscard]] std::optional<std::vector<std::byte>> compress_rows(std::span<const std::byte> payload,
                                                                  std::span<const RowRun> runs);

/// Fills `out` from what compress_rows() gave. False when that is not possible; `out` is then undefined.
[[nodiscard]] bool expand_rows(std::span<const std::byte> stored, std::span<std::byte> out);

}  // namespace tidepool::store
