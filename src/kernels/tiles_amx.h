#pragma once

// gcc 12 takes the undefined operand inside its own intrinsics for a variable of ours (gcc bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include "kernels/amx_tile_config.h"
#include "kernels/kernel_table_internal.h"
#include "kernels/turn_avx512bf16.h"

// y = W x on tiles, for any Format of weights (formats_amx.h) and any Tiles that have the functions of HardwareTiles.
//
// One step is 32 columns. Weights are the left operand of a product, 16 outputs by 32 columns, so that a row of the
// tile is a row of the matrix, decoded to bfloat16 with its scale (exact: see formats_amx.h); activations are the right
// operand, 32 columns by up to 16 rows of x, which wants pairs of columns side by side and is therefore packed, once
// per call. Each sum of a tile starts at zero and takes the steps in ascending order, always with whole steps (columns
// that do not exist are zeros on both sides). A product works on each (output, row) by itself, so the result is the
// same whatever else lies in the tiles: for one row and for many, and for every range of outputs.
//
// Four sums of 16 x 16 are open at a time: 32 outputs by 32 rows, four loads for four products.

namespace tidepool::kernels {
namespace {

#define TIDEPOOL_INLINE __attribute__((always_inline)) inline

/// Columns of a step; also what shares a scale.
inline constexpr size_t kStep = 32;
inline constexpr size_t kPairs = kStep / 2;
/// Steps that are decoded before they are multiplied: 32 outputs of them are 16 KiB, a third of the first-level cache.
inline constexpr size_t kGroupSteps = 8;
/// Outputs that are worked on at a time. Blocks are cut at multiples of this, so that each lies in one row of FP8 scale
/// tiles.
inline constexpr size_t kBlockOutputs = 2 * kTileSide;
/// Rows packed at once: 512 KiB on the stack, a quarter of the second-level cache of the processors this is for, and no
/// more than what the unfinished sums below have room for.
inline constexpr size_t kPackedPairs = 131072;
inline constexpr size_t kRowsMax = 128;

inline size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

/// What a block of outputs works on.
struct alignas(64) Workspace {
  uint16_t weights[kGroupSteps][2][kTileSide][kStep];
  /// [16 rows of x, 16 outputs, output, row]
  float sums[kRowsMax / kTileSide][2][kTileSide][kTileSide];
};
inline constexpr size_t kStepWords = 2 * kTileSide * kStep;

/// Rows of x in pairs of columns: blocks of up to 16 rows, one after the other, each [steps, 16 pairs, pitch].
struct PackedRows {
  const uint32_t* pairs;
  size_t steps;
  size_t rows;
  size_t pitch;

  [[nodiscard]] size_t blocks() const { return (rows + pitch - 1) / pitch; }
  [[nodiscard]] size_t step_pairs() const { return kPairs * pitch; }
  [[nodiscard]] const uint32_t* at(size_t block, size_t step) const {
    return pairs + (block * steps + step) * step_pairs();
  }
};

/// Rows of a tile of activations. A single row needs no transposition; others are dealt out by fours.
inline size_t pitch_of(size_t rows) {
  return rows == 1 ? 1 : smaller(kTileSide, (rows + 3) / 4 * 4);
}

/// How many rows of `steps` steps fit the packing buffer: as many whole pairs of tiles as possible.
inline size_t rows_at_once(size_t steps) {
  const size_t rows = smaller(kRowsMax, kPackedPairs / (steps * kPairs));
  if (rows >= 2 * kTileSide) return rows / (2 * kTileSide) * (2 * kTileSide);
  if (rows >= kTileSide) return kTileSide;
  return rows >= 4 ? rows / 4 * 4 : 1;
}

TIDEPOOL_INLINE __mmask16 lanes_below(size_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffffU : (1U << count) - 1U);
}

/// Up to 32 activations as bfloat16 pairs, missing ones as zero. They are exact in bfloat16, so its bits are the upper
/// halves. Lane j of four dwords has pairs 2j, 2j + 1, 8 + 2j, 9 + 2j: the order that needs one instruction.
TIDEPOOL_INLINE __m512i load_pairs(const float* x, size_t count) {
  const __m512i first = _mm512_castps_si512(_mm512_maskz_loadu_ps(lanes_below(count), x));
  const __m512i second = count <= 16 ? _mm512_setzero_si512()
                                     : _mm512_castps_si512(_mm512_maskz_loadu_ps(lanes_below(count - 16), x + 16));
  return _mm512_packus_epi32(_mm512_srli_epi32(first, 16), _mm512_srli_epi32(second, 16));
}

/// The four lanes of `value`, `stride` dwords apart.
TIDEPOOL_INLINE void store_lanes(void* to, size_t stride, __m512i value) {
  auto* out = static_cast<int32_t*>(to);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_castsi512_si128(value));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + stride), _mm512_extracti32x4_epi32(value, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * stride), _mm512_extracti32x4_epi32(value, 2));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * stride), _mm512_extracti32x4_epi32(value, 3));
}

/// One step of one row, when it is the only one.
TIDEPOOL_INLINE void pack_single(const float* x, size_t columns, uint32_t* out) {
  const __m512i ascending = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
  _mm512_storeu_si512(out, _mm512_permutexvar_epi64(ascending, load_pairs(x, columns)));
}

/// One step of a block of rows.
TIDEPOOL_INLINE void pack_step(const float* x, size_t x_stride, size_t rows, size_t columns, size_t pitch,
                               uint32_t* out) {
  for (size_t r = 0; r < pitch; r += 4) {
    __m512i row[4];
    for (size_t i = 0; i < 4; ++i)
      row[i] = r + i < rows ? load_pairs(x + (r + i) * x_stride, columns) : _mm512_setzero_si512();
    __m512i turned[4];
    turn_dwords(row, turned);
    for (size_t q = 0; q < 4; ++q)
      store_lanes(out + (q / 2 * 8 + q % 2) * pitch + r, 2 * pitch, turned[q]);
  }
}

/// Rows [first, first + packed.rows) of x; `pairs` is the memory of `packed`.
inline void pack_rows(const LinearArgs& args, size_t first, const PackedRows& packed, uint32_t* pairs) {
  for (size_t block = 0; block < packed.blocks(); ++block) {
    const size_t begin = block * packed.pitch;
    const size_t rows = smaller(packed.pitch, packed.rows - begin);
    const float* x = args.x + (first + begin) * args.x_stride;
    for (size_t s = 0; s < packed.steps; ++s) {
      uint32_t* out = pairs + (block * packed.steps + s) * packed.step_pairs();
      const size_t columns = smaller(kStep, args.weight.in - s * kStep);
      if (packed.pitch == 1) {
        pack_single(x + s * kStep, columns, out);
      } else {
        pack_step(x + s * kStep, args.x_stride, rows, columns, packed.pitch, out);
      }
    }
  }
}

/// Tiles 0 to 3 are sums [16 outputs, pitch rows], 4 and 5 weights, 6 and 7 activations.
inline TileConfig config_for(size_t pitch) {
  TileConfig config;
  for (size_t tile = 0; tile < kTileCount; ++tile) {
    const bool is_weight = tile == 4 || tile == 5;
    config.rows[tile] = kTileSide;
    config.row_bytes[tile] = static_cast<uint16_t>(is_weight ? kTileRowBytes : pitch * sizeof(float));
  }
  return config;
}

/// Steps [first, first + count) of a block of outputs and one or two blocks of rows.
struct Product {
  size_t row_block;
  size_t first_step;
  size_t steps;
  bool begins;  ///< the sums start at zero
  bool loads;   ///< they are taken up from the workspace
  bool stores;  ///< they go back there
};

/// Sum 2 * a + b is that of weights 4 + a and activations 6 + b.
template <int kOutputTiles, int kRowTiles, typename Tiles>
void multiply(Tiles& tiles, Workspace& work, const PackedRows& x, const Product& part) {
  auto& left = work.sums[part.row_block];
  auto& right = work.sums[part.row_block + kRowTiles - 1];
  if (part.begins) {
    tiles.template zero<0>();
    if constexpr (kRowTiles == 2) tiles.template zero<1>();
    if constexpr (kOutputTiles == 2) tiles.template zero<2>();
    if constexpr (kOutputTiles == 2 && kRowTiles == 2) tiles.template zero<3>();
  }
  if (part.loads) {
    tiles.template load<0>(left[0], kTileRowBytes);
    if constexpr (kRowTiles == 2) tiles.template load<1>(right[0], kTileRowBytes);
    if constexpr (kOutputTiles == 2) tiles.template load<2>(left[1], kTileRowBytes);
    if constexpr (kOutputTiles == 2 && kRowTiles == 2) tiles.template load<3>(right[1], kTileRowBytes);
  }
  const size_t row_bytes = x.pitch * sizeof(uint32_t);
  for (size_t s = 0; s < part.steps; ++s) {
    tiles.template load<4>(work.weights[s][0], kTileRowBytes);
    tiles.template load<6>(x.at(part.row_block, part.first_step + s), row_bytes);
    tiles.template multiply<0, 4, 6>();
    if constexpr (kRowTiles == 2) {
      tiles.template load<7>(x.at(part.row_block + 1, part.first_step + s), row_bytes);
      tiles.template multiply<1, 4, 7>();
    }
    if constexpr (kOutputTiles == 2) {
      tiles.template load<5>(work.weights[s][1], kTileRowBytes);
      tiles.template multiply<2, 5, 6>();
      if constexpr (kRowTiles == 2) tiles.template multiply<3, 5, 7>();
    }
  }
  if (part.stores) {
    tiles.template store<0>(left[0], kTileRowBytes);
    if constexpr (kRowTiles == 2) tiles.template store<1>(right[0], kTileRowBytes);
    if constexpr (kOutputTiles == 2) tiles.template store<2>(left[1], kTileRowBytes);
    if constexpr (kOutputTiles == 2 && kRowTiles == 2) tiles.template store<3>(right[1], kTileRowBytes);
  }
}

/// All rows against the decoded steps. Up to 32 rows keep their sums in the tiles from the first step to the last; more
/// take turns.
template <typename Tiles>
void multiply_group(Tiles& tiles, Workspace& work, const PackedRows& x, size_t outputs, size_t first_step,
                    size_t steps) {
  const bool is_first = first_step == 0;
  const bool is_last = first_step + steps == x.steps;
  const bool takes_turns = x.blocks() > 2;
  for (size_t block = 0; block < x.blocks(); block += 2) {
    const Product part = {block, first_step, steps, is_first, takes_turns && !is_first, takes_turns || is_last};
    const bool has_two = block + 1 < x.blocks();
    if (outputs > kTileSide) {
      has_two ? multiply<2, 2>(tiles, work, x, part) : multiply<2, 1>(tiles, work, x, part);
    } else {
      has_two ? multiply<1, 2>(tiles, work, x, part) : multiply<1, 1>(tiles, work, x, part);
    }
  }
}

/// The finished sums of one tile, [outputs, rows], to y [rows, outputs].
inline void write_tile(const float (&sum)[kTileSide][kTileSide], size_t rows, size_t outputs, float* y, size_t stride) {
  size_t o = 0;
  for (; rows == kTileSide && o + 4 <= outputs; o += 4) {
    __m512i row[4];
    for (size_t i = 0; i < 4; ++i)
      row[i] = _mm512_load_si512(sum[o + i]);
    __m512i turned[4];
    turn_dwords(row, turned);
    for (size_t q = 0; q < 4; ++q)
      store_lanes(y + q * stride + o, 4 * stride, turned[q]);
  }
  for (; o < outputs; ++o) {
    for (size_t r = 0; r < rows; ++r)
      y[r * stride + o] = sum[o][r];
  }
}

/// `y` is where the first row of x has output 0.
inline void write_outputs(const Workspace& work, const PackedRows& x, size_t first, size_t outputs, float* y,
                          size_t stride) {
  for (size_t block = 0; block < x.blocks(); ++block) {
    const size_t begin = block * x.pitch;
    const size_t rows = smaller(x.pitch, x.rows - begin);
    for (size_t tile = 0; tile * kTileSide < outputs; ++tile) {
      const size_t count = smaller(kTileSide, outputs - tile * kTileSide);
      write_tile(work.sums[block][tile], rows, count, y + begin * stride + first + tile * kTileSide, stride);
    }
  }
}

/// Outputs [first, first + outputs) for all packed rows.
template <typename Format, typename Tiles>
void multiply_outputs(const LinearArgs& args, const PackedRows& x, size_t first, size_t outputs, float* y, Tiles& tiles,
                      Workspace& work) {
  for (size_t s = 0; s < x.steps; s += kGroupSteps) {
    const size_t steps = smaller(kGroupSteps, x.steps - s);
    const Format format(args.weight, first, s, steps);
    for (size_t o = 0; o < outputs; ++o)
      format.decode(first + o, work.weights[0][o / kTileSide][o % kTileSide]);
    multiply_group(tiles, work, x, outputs, s, steps);
  }
  write_outputs(work, x, first, outputs, y, args.y_stride);
}

/// calls(first, count) for the blocks that [out_begin, out_end) consists of.
template <typename Call>
TIDEPOOL_INLINE void for_blocks(const LinearArgs& args, const Call& call) {
  size_t end = 0;
  for (size_t first = args.out_begin; first < args.out_end; first = end) {
    end = smaller((first / kBlockOutputs + 1) * kBlockOutputs, args.out_end);
    call(first, end - first);
  }
}

/// Not inlined, so that its memory is free again when the outputs below are made good.
template <typename Format, typename Tiles>
__attribute__((noinline)) void multiply_all(const LinearArgs& args, size_t steps) {
  alignas(64) uint32_t pairs[kPackedPairs];
  Workspace work;
  // Rows of weight tiles whose outputs do not exist are multiplied too, and their results left alone.
  __builtin_memset(work.weights, 0, sizeof work.weights);
  Tiles tiles;
  const size_t rows_max = rows_at_once(steps);
  for (size_t first_row = 0; first_row < args.rows; first_row += rows_max) {
    const size_t rows = smaller(rows_max, args.rows - first_row);
    const PackedRows x = {pairs, steps, rows, pitch_of(rows)};
    pack_rows(args, first_row, x, pairs);
    tiles.configure(config_for(x.pitch));
    float* y = args.y + first_row * args.y_stride;
    for_blocks(
        args, [&](size_t first, size_t outputs) { multiply_outputs<Format>(args, x, first, outputs, y, tiles, work); });
    tiles.release();
  }
}

/// `exact` is the version of the vectors. It computes the outputs whose scaled weights bfloat16 does not hold (scales
/// near the ends of E8M0, which no release has), and matrices too wide for the packing buffer: what decides is the
/// output's own weights, so this too depends on nothing else.
template <typename Format, typename Tiles>
void linear_on_tiles(const LinearArgs& args, void (*exact)(const LinearArgs&) noexcept) {
  const size_t steps = (args.weight.in + kStep - 1) / kStep;
  if (steps == 0 || steps * kPairs > kPackedPairs) return exact(args);
  if (args.rows == 0) return;
  multiply_all<Format, Tiles>(args, steps);
  if constexpr (Format::kHasScales) {
    for (size_t o = args.out_begin; o < args.out_end; ++o) {
      if (Format::is_exact(args.weight, o)) continue;
      LinearArgs one = args;
      one.out_begin = o;
      one.out_end = o + 1;
      exact(one);
    }
  }
}

}  // namespace
}  // namespace tidepool::kernels
