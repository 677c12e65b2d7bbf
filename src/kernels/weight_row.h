#pragma once

#include "kernels/kernel_table.h"
#include "kernels/math_vector.h"

// One output's weights, for the vector versions of linears. Included after the Vec that they are written in.

namespace tidepool::kernels {
namespace {

/// Columns that share a scale.
inline constexpr size_t kBlock = 32;

/// Weights are fetched this far ahead of their use. From 1 to 4 KiB made no difference, less and more were slower.
inline constexpr size_t kPrefetchBytes = 2048;

/// Where the codes and scales of one output lie. A Format says how long rows are, and how many bytes make a group.
template <typename Format>
struct WeightRow {
  const std::byte* codes = nullptr;
  const uint8_t* scales = nullptr;

  WeightRow() = default;
  WeightRow(const MatrixView& weight, size_t o)
      : codes(weight.data + o * Format::row_bytes(weight.in)), scales(Format::row_scales(weight, o)) {}

  /// Fetches as many bytes as a group has, `bytes` behind the begin of group `group`.
  TIDEPOOL_INLINE void prefetch_group(size_t group, size_t bytes = kPrefetchBytes) const {
    const std::byte* ahead = codes + group * Format::kGroupBytes + bytes;
    for (size_t line = 0; line < Format::kGroupBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line), _MM_HINT_T0);
    }
  }
};

}  // namespace
}  // namespace tidepool::kernels
