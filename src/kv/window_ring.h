#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/buffer.h"

namespace tidepool {

/// The last rows of one layer's sliding window, packed, one slot per position modulo the ring's length.
class WindowRing {
 public:
  WindowRing(int64_t ring_rows, size_t row_bytes)
      : rows_(static_cast<size_t>(ring_rows) * row_bytes), ring_rows_(ring_rows), row_bytes_(row_bytes) {}

  [[nodiscard]] WindowRing copy() const {
    WindowRing result(0, row_bytes_);
    result.rows_ = rows_.copy();
    result.ring_rows_ = ring_rows_;
    return result;
  }
  [[nodiscard]] std::span<const std::byte> row(int64_t position) const {
    return {rows_.data() + at(position), row_bytes_};
  }
  [[nodiscard]] std::span<std::byte> row(int64_t position) { return {rows_.data() + at(position), row_bytes_}; }
  [[nodiscard]] size_t bytes() const { return rows_.size(); }

 private:
  [[nodiscard]] size_t at(int64_t position) const { return static_cast<size_t>(position % ring_rows_) * row_bytes_; }

  Buffer<std::byte> rows_;
  int64_t ring_rows_;
  size_t row_bytes_;
};

}  // namespace tidepool
