#pragma once

#include <cstddef>
#include <cstdint>

namespace tidepool::kernels {

/// Rows of a tile, and binary32 values (or pairs of bfloat16) of one of its rows.
inline constexpr size_t kTileSide = 16;
inline constexpr size_t kTileRowBytes = 64;
inline constexpr size_t kTileCount = 8;

/// The 64 bytes that LDTILECFG reads (palette 1): how many rows each tile has, and how many bytes each of its rows.
/// Palette 1 allows up to 16 rows of 64 bytes; a multiple of 4 bytes is what the bfloat16 product takes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace tidepool::kernels
