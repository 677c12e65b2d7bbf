#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tidepool {

/// How one row of the KV cache (one latent or one index key) lies in memory: all codes first, then all scales.
/// (docs/model.md 3.1; sizes in the accounting: 528, 288 and 68 bytes at the released widths)
enum class RowFormat : uint8_t {
  kFp8Block32,  ///< window entries: E4M3 codes, an E8M0 scale per 32 (a power of two, rounded up; amax floor 1e-4)
  kFp4Block16,  ///< global entries: E2M1 codes, an E4M3 scale per 16 (amax/6 rounded to nearest; amax floor 6*2^-9)
  kFp4Block32,  ///< index keys and queries: E2M1 codes, an E8M0 scale per 32 (power of two, rounded up; floor 6*2^-126)
  kFloat32,     ///< no grid at all: experiments that ask what the grids cost, never the default
};

/// Bytes of one row of `width` values. `width` is a multiple of the block.
[[nodiscard]] size_t row_bytes(RowFormat format, size_t width);

/// Quantises `values` and writes row_bytes(format, values.size()) bytes. A block with a NaN or an infinity gets a NaN
/// scale, so that all of it reads as NaN. Packing unpacked values again gives the same values, except for blocks of
/// kFp4Block16 whose scale is below 2^-6: keep rows packed, do not pack them twice.
void pack_row(RowFormat format, std::span<const float> values, std::span<std::byte> out);

/// The exact values of a packed row.
void unpack_row(RowFormat format, std::span<const std::byte> row, std::span<float> out);

}  // namespace tidepool
