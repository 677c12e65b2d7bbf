#pragma once

// The product on tiles, for any Tiles that have the functions of HardwareTiles (amx.h). A left panel is 32 rows: two
// groups of [steps, 16 rows, 32 terms], a tile a step; a right one is that of gemm_bf16_avx512.h, a tile a step and
// group. Four sums of 16 x 16 are open at a time.

#include "kernels/amx_tile_config.h"
#include "kernels/gemm_bf16_avx512.h"

namespace tidepool::kernels {
namespace {

inline constexpr size_t kTilePanelRows = 2 * kTileSide;

inline size_t tile_rows_bytes(size_t depth) noexcept {
  return 2 * group_bytes(depth);
}

/// Lanes [first_lane, first_lane + 16) of a left panel.
inline void pack_tile_group(const GemmPackArgs& args, size_t first_lane, std::byte* out) {
  const size_t steps = padded_depth(args.depth) / kStepTerms;
  for (size_t step = 0; step < steps; ++step) {
    __m512i rows[16];
    if (args.step_stride == 1) {
      load_step_rows(args, first_lane, step, rows);
    } else {
      load_step_columns(args, first_lane, step, rows);
      transpose(rows);
    }
    for (size_t l = 0; l < kGroupLanes; ++l)
      _mm512_store_si512(out + (step * kGroupLanes + l) * 64, rows[l]);
  }
}

inline void pack_tile_rows(const GemmPackArgs& args) noexcept {
  pack_tile_group(args, 0, args.packed);
  pack_tile_group(args, kGroupLanes, args.packed + group_bytes(args.depth));
}

/// Sums of tile (i, j) are tile 2 * i + j; tiles 4 and 5 are rows, 6 and 7 columns.
template <typename Tiles>
TIDEPOOL_INLINE void multiply_panels(const GemmTileArgs& args, Tiles& tiles) {
  const size_t offset = args.begin * kGroupLanes * 2;
  const std::byte* top = args.left + offset;
  const std::byte* bottom = top + group_bytes(args.panel_depth);
  const std::byte* low = args.right + offset;
  const std::byte* high = low + group_bytes(args.panel_depth);
  tiles.template zero<0>();
  tiles.template zero<1>();
  tiles.template zero<2>();
  tiles.template zero<3>();
  const size_t steps = padded_depth(args.depth) / kStepTerms;
  constexpr size_t kTileBytes = kTileSide * kTileRowBytes;
  for (size_t step = 0; step < steps; ++step) {
    tiles.template load<4>(top + step * kTileBytes, kTileRowBytes);
    tiles.template load<6>(low + step * kTileBytes, kTileRowBytes);
    tiles.template load<7>(high + step * kTileBytes, kTileRowBytes);
    tiles.template multiply<0, 4, 6>();
    tiles.template multiply<1, 4, 7>();
    tiles.template load<5>(bottom + step * kTileBytes, kTileRowBytes);
    tiles.template multiply<2, 5, 6>();
    tiles.template multiply<3, 5, 7>();
  }
  alignas(64) float sums[4][kTileSide][kTileSide];
  tiles.template store<0>(sums[0], kTileRowBytes);
  tiles.template store<1>(sums[1], kTileRowBytes);
  tiles.template store<2>(sums[2], kTileRowBytes);
  tiles.template store<3>(sums[3], kTileRowBytes);
  for (size_t r = 0; r < args.rows; ++r) {
    for (size_t half = 0; half < 2; ++half) {
      if (args.cols <= half * kTileSide) continue;
      const size_t count = args.cols - half * kTileSide;
      float* c = args.c + r * args.c_stride + half * kTileSide;
      const Vec::F sum = Vec::load(sums[2 * (r / kTileSide) + half][r % kTileSide]);
      Vec::store(c, args.adds ? Vec::add(Vec::load(c, count), sum) : sum, count);
    }
  }
}

inline TileConfig whole_tiles() {
  TileConfig config;
  for (size_t tile = 0; tile < kTileCount; ++tile) {
    config.rows[tile] = kTileSide;
    config.row_bytes[tile] = kTileRowBytes;
  }
  return config;
}

}  // namespace
}  // namespace tidepool::kernels
