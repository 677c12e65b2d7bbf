#pragma once

#include <utility>

#include "kernels/decode_avx512bf16.h"
#include "kernels/kernel_table_internal.h"

// y = W x by VDPBF16PS for any Format of weights (linear_avx512bf16.cpp): 32 products of bfloat16 in one instruction,
// added to 16 sums of binary32.
//
// Weights are walked in groups of 128 columns, four vectors of bfloat16 each, their scales included (exact: a Format
// says for which). Which column sits where follows from how the codes unpack cheapest; the rows of x are put in the
// same order once per call. Sum l of a row and an output takes the products of lane l of all vectors, in order; at the
// end the 16 sums are added up. Every path below does exactly this, always with whole groups (columns that do not exist
// are zeros on both sides), so results depend neither on the path nor on neighbours.

namespace tidepool::kernels {
namespace {

/// Columns that share a scale.
inline constexpr size_t kBlock = 32;
inline constexpr size_t kGroup = 128;
inline constexpr size_t kGroupBlocks = kGroup / kBlock;
inline constexpr size_t kGroupVectors = 4;

/// A group of one output's weights, or of a row of x.
struct Group {
  __m512i vector[kGroupVectors];
};

TIDEPOOL_INLINE Vec::F add_products(Vec::F sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

/// Weights are fetched this far ahead of their use.
inline constexpr size_t kPrefetchBytes = 2048;

/// One output's weights.
template <typename Format>
struct WeightRow {
  const std::byte* codes = nullptr;
  const uint8_t* scales = nullptr;

  WeightRow() = default;
  WeightRow(const MatrixView& weight, size_t o)
      : codes(weight.data + o * Format::row_bytes(weight.in)), scales(Format::row_scales(weight, o)) {}

  /// Group `g`, all of whose columns exist.
  TIDEPOOL_INLINE Group load_whole(size_t g) const {
    const std::byte* from = codes + g * Format::kGroupBytes;
    for (size_t line = 0; line < Format::kGroupBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(from + kPrefetchBytes + line), _MM_HINT_T0);
    }
    return Format::decode(from, scales + g * kGroupBlocks);
  }
  /// Group `g` of `in` columns, filled up with zeros where it is cut.
  Group load_cut(size_t in, size_t g) const {
    alignas(64) std::byte copy[Format::kGroupBytes] = {};
    uint8_t copied_scales[kGroupBlocks] = {};
    const size_t begin = g * Format::kGroupBytes;
    __builtin_memcpy(copy, codes + begin, smaller(Format::kGroupBytes, Format::row_bytes(in) - begin));
    if constexpr (Format::kHasScales) {
      const size_t first = g * kGroupBlocks;
      const size_t count = smaller(kGroupBlocks, (in + kBlock - 1) / kBlock - first);
      __builtin_memcpy(copied_scales, scales + first, count);
    }
    return Format::decode(copy, copied_scales);
  }
};

/// Rows of x, each `stride` vectors after the one before.
struct PackedRows {
  __m512i* vectors;
  size_t stride;
  size_t groups;
  size_t count;

  [[nodiscard]] TIDEPOOL_INLINE const __m512i* row(size_t r) const { return vectors + r * stride; }
};

/// One row, in the format's order.
template <typename Format>
void pack_row(const float* x, size_t in, __m512i* packed) {
  for (size_t begin = 0; begin < in; begin += kGroup, packed += kGroupVectors) {
    alignas(64) float padded[kGroup] = {};
    const float* from = x + begin;
    if (in - begin < kGroup) {
      __builtin_memcpy(padded, from, (in - begin) * sizeof(float));
      from = padded;
    }
    const Group group = Format::pack(from);
    for (size_t v = 0; v < kGroupVectors; ++v)
      _mm512_store_si512(packed + v, group.vector[v]);
  }
}

/// `kOutputs` outputs, `spread` apart, against `kRows` rows, weights decoded in registers: for few rows.
template <typename Format, size_t kOutputs, size_t kRows>
struct Direct {
  WeightRow<Format> weights[kOutputs];
  Vec::F sum[kOutputs][kRows];

  TIDEPOOL_INLINE void add(const Group (&group)[kOutputs], const PackedRows& x, size_t g) {
    for (size_t v = 0; v < kGroupVectors; ++v) {
      for (size_t r = 0; r < kRows; ++r) {
        const __m512i value = _mm512_load_si512(x.row(r) + g * kGroupVectors + v);
        for (size_t o = 0; o < kOutputs; ++o)
          sum[o][r] = add_products(sum[o][r], group[o].vector[v], value);
      }
    }
  }

  TIDEPOOL_INLINE void run(const LinearArgs& args, const PackedRows& x, size_t first, size_t spread, float* y) {
    for (size_t o = 0; o < kOutputs; ++o) {
      weights[o] = WeightRow<Format>(args.weight, first + o * spread);
      for (size_t r = 0; r < kRows; ++r)
        sum[o][r] = Vec::zero();
    }
    Group group[kOutputs];
    const size_t whole = args.weight.in / kGroup;
    for (size_t g = 0; g < whole; ++g) {
      for (size_t o = 0; o < kOutputs; ++o)
        group[o] = weights[o].load_whole(g);
      add(group, x, g);
    }
    if (whole < x.groups) {
      for (size_t o = 0; o < kOutputs; ++o)
        group[o] = weights[o].load_cut(args.weight.in, whole);
      add(group, x, whole);
    }
    for (size_t o = 0; o < kOutputs; ++o) {
      for (size_t r = 0; r < kRows; ++r)
        y[r * args.y_stride + first + o * spread] = Vec::sum(sum[o][r]);
    }
  }
};

/// The outputs of one step are far apart, so that each walks a region of memory of its own: the processor's prefetch
/// stops at the end of every page, and streams that reach it at different times cover for each other.
template <typename Format, size_t kRows>
void linear_direct(const LinearArgs& args, const PackedRows& x, float* y) {
  constexpr size_t kOutputs = kRows == 1 ? 4 : 2;
  const size_t spread = (args.out_end - args.out_begin) / kOutputs;
  for (size_t o = 0; o < spread; ++o)
    Direct<Format, kOutputs, kRows>().run(args, x, args.out_begin + o, spread, y);
  for (size_t o = args.out_begin + kOutputs * spread; o < args.out_end; ++o)
    Direct<Format, 1, kRows>().run(args, x, o, 0, y);
}

/// More rows: weights are decoded once for all of them, kStripOutputs outputs at a time, into a strip that stays in the
/// second cache. It is multiplied in tiles of kTileOutputs outputs and kTileGroups groups, which stay in the first one
/// while kBlockRows rows pass: six rows and four outputs at a time, that is 24 sums in registers and ten loads for 24
/// products. Sums wait in the second cache between the tiles of a block of rows.
inline constexpr size_t kTileOutputs = 16;
inline constexpr size_t kTileGroups = 8;
inline constexpr size_t kTileVectors = kTileGroups * kGroupVectors;
inline constexpr size_t kStepOutputs = 4;
inline constexpr size_t kStepRows = 6;
inline constexpr size_t kBlockRows = 48;
inline constexpr size_t kStripOutputs = 32;
/// Half of the second cache of the machines this is for.
inline constexpr size_t kStripTiles = (size_t{512} << 10) / (kTileOutputs * kTileVectors * sizeof(__m512i));

using Tile = __m512i[kTileOutputs / kStepOutputs][kTileVectors][kStepOutputs];

struct alignas(64) Workspace {
  Tile weights[kStripTiles];
  Vec::F sums[kStripOutputs / kTileOutputs][kBlockRows][kTileOutputs];
};

constexpr size_t slice_count(size_t in) {
  return (in + kTileGroups * kGroup - 1) / (kTileGroups * kGroup);
}

/// Rows of x in slices of a tile's columns: what a tile is multiplied with lies in one piece.
struct SlicedRows {
  const __m512i* vectors;
  size_t count;   ///< rows of a slice
  size_t groups;  ///< of a row

  [[nodiscard]] TIDEPOOL_INLINE const __m512i* row(size_t slice, size_t r) const {
    return vectors + (slice * count + r) * kTileVectors;
  }
};

/// Row `r` of `count`, in the format's order.
template <typename Format>
void pack_sliced(const float* x, size_t in, size_t r, size_t count, __m512i* packed) {
  for (size_t slice = 0; slice < slice_count(in); ++slice) {
    const size_t begin = slice * kTileGroups * kGroup;
    pack_row<Format>(x + begin, smaller(kTileGroups * kGroup, in - begin), packed + (slice * count + r) * kTileVectors);
  }
}

/// See KernelTable::pack_inputs.
template <typename Format>
void pack_inputs_as(const PackArgs& args) {
  for (size_t r = args.begin; r < args.end; ++r)
    pack_sliced<Format>(args.x + r * args.x_stride, args.in, r, args.rows, reinterpret_cast<__m512i*>(args.packed));
}

/// Decodes `count` groups of outputs [first, first + outputs). Those missing from the last four become zeros: they are
/// multiplied too, and their results left alone.
template <typename Format>
void fill_tile(const MatrixView& weight, size_t first, size_t outputs, size_t first_group, size_t count, Tile& tile) {
  const size_t whole = weight.in / kGroup;
  for (size_t o = 0; o < outputs; ++o) {
    const WeightRow<Format> row(weight, first + o);
    __m512i* out = &tile[o / kStepOutputs][0][o % kStepOutputs];
    for (size_t g = first_group; g < first_group + count; ++g) {
      const Group group = g < whole ? row.load_whole(g) : row.load_cut(weight.in, g);
      for (size_t v = 0; v < kGroupVectors; ++v, out += kStepOutputs)
        _mm512_store_si512(out, group.vector[v]);
    }
  }
  for (size_t o = outputs; o % kStepOutputs != 0; ++o) {
    for (size_t v = 0; v < count * kGroupVectors; ++v)
      _mm512_store_si512(&tile[o / kStepOutputs][v][o % kStepOutputs], _mm512_setzero_si512());
  }
}

/// One vector of four outputs with that of each row. Indices are constants, and not those of a loop, because gcc
/// decides before it unrolls loops whether an array can be registers.
template <size_t kRow>
TIDEPOOL_INLINE void multiply_row(const __m512i (&w)[kStepOutputs], const __m512i* x, Vec::F* sum) {
  const __m512i value = _mm512_load_si512(x);
  sum[4 * kRow] = add_products(sum[4 * kRow], w[0], value);
  sum[4 * kRow + 1] = add_products(sum[4 * kRow + 1], w[1], value);
  sum[4 * kRow + 2] = add_products(sum[4 * kRow + 2], w[2], value);
  sum[4 * kRow + 3] = add_products(sum[4 * kRow + 3], w[3], value);
}

/// `vectors` vectors of four outputs times as many rows as there are indices; sums are loaded and stored again.
template <size_t... kRow>
void multiply_step(const __m512i (*weights)[kStepOutputs], size_t vectors, const __m512i* x,
                   Vec::F (*sums)[kTileOutputs], std::index_sequence<kRow...> /*rows*/) {
  Vec::F local[kStepOutputs * sizeof...(kRow)];
  ((local[4 * kRow] = sums[kRow][0], local[4 * kRow + 1] = sums[kRow][1], local[4 * kRow + 2] = sums[kRow][2],
    local[4 * kRow + 3] = sums[kRow][3]),
   ...);
  for (size_t v = 0; v < vectors; ++v) {
    const __m512i w[kStepOutputs] = {_mm512_load_si512(weights[v]), _mm512_load_si512(weights[v] + 1),
                                     _mm512_load_si512(weights[v] + 2), _mm512_load_si512(weights[v] + 3)};
    (multiply_row<kRow>(w, x + kRow * kTileVectors + v, local), ...);
  }
  ((sums[kRow][0] = local[4 * kRow], sums[kRow][1] = local[4 * kRow + 1], sums[kRow][2] = local[4 * kRow + 2],
    sums[kRow][3] = local[4 * kRow + 3]),
   ...);
}

/// `count` rows from `x` on times a tile's `vectors` vectors, in steps of rows as equal as they can be.
inline void multiply_tile(const Tile& tile, size_t outputs, size_t vectors, const __m512i* x, size_t count,
                          Vec::F (*all_sums)[kTileOutputs]) {
  const size_t steps = (count + kStepRows - 1) / kStepRows;
  size_t end = 0;
  for (size_t step = 0; step < steps; ++step) {
    const size_t first = end;
    end = count * (step + 1) / steps;
    const __m512i* rows = x + first * kTileVectors;
    for (size_t quad = 0; quad * kStepOutputs < outputs; ++quad) {
      const auto* weights = tile[quad];
      auto* sums = reinterpret_cast<Vec::F(*)[kTileOutputs]>(all_sums[first] + quad * kStepOutputs);
      switch (end - first) {
        case 1: multiply_step(weights, vectors, rows, sums, std::make_index_sequence<1>()); break;
        case 2: multiply_step(weights, vectors, rows, sums, std::make_index_sequence<2>()); break;
        case 3: multiply_step(weights, vectors, rows, sums, std::make_index_sequence<3>()); break;
        case 4: multiply_step(weights, vectors, rows, sums, std::make_index_sequence<4>()); break;
        case 5: multiply_step(weights, vectors, rows, sums, std::make_index_sequence<5>()); break;
        default: multiply_step(weights, vectors, rows, sums, std::make_index_sequence<6>()); break;
      }
    }
  }
}

/// Outputs whose weights fit a strip: whole tiles of them, and at least one.
constexpr size_t strip_outputs(size_t slices) {
  return slices > kStripTiles ? kTileOutputs : smaller(kStripOutputs, kStripTiles / slices * kTileOutputs);
}

/// A part of the codes that the next strip decodes, fetched while this one is multiplied.
template <typename Format>
void prefetch_part(const LinearArgs& args, size_t first, size_t outputs, size_t part, size_t parts) {
  const size_t end_output = smaller(first + outputs, args.out_end);
  if (first >= end_output) return;
  const size_t row_bytes = Format::row_bytes(args.weight.in);
  const size_t lines = (end_output - first) * row_bytes / 64;
  const auto* codes = reinterpret_cast<const char*>(args.weight.data + first * row_bytes);
  for (size_t line = lines * part / parts; line < lines * (part + 1) / parts; ++line)
    _mm_prefetch(codes + line * 64, _MM_HINT_T1);
}

/// All rows of x times outputs [first, first + outputs), which make a strip.
template <typename Format>
void multiply_strip(const LinearArgs& args, const SlicedRows& x, size_t first, size_t outputs, float* y,
                    Workspace& work) {
  const size_t slices = slice_count(args.weight.in);
  const size_t tiles = (outputs + kTileOutputs - 1) / kTileOutputs;
  const size_t blocks = (x.count + kBlockRows - 1) / kBlockRows;
  // What no other block of rows will use need not leave the first cache, and what is too wide is decoded for each.
  const bool is_kept = blocks > 1 && slices * tiles <= kStripTiles;
  for (size_t block = 0; block < blocks; ++block) {
    const size_t row = block * kBlockRows;
    const size_t rows = smaller(kBlockRows, x.count - row);
    __builtin_memset(work.sums, 0, sizeof work.sums[0] * tiles);
    for (size_t slice = 0; slice < slices; ++slice) {
      const size_t groups = smaller(kTileGroups, x.groups - slice * kTileGroups);
      for (size_t t = 0; t < tiles; ++t) {
        const size_t tile_outputs = smaller(kTileOutputs, outputs - t * kTileOutputs);
        Tile& tile = work.weights[is_kept ? slice * tiles + t : 0];
        if (block == 0 || !is_kept) {
          fill_tile<Format>(args.weight, first + t * kTileOutputs, tile_outputs, slice * kTileGroups, groups, tile);
        }
        multiply_tile(tile, tile_outputs, groups * kGroupVectors, x.row(slice, row), rows, work.sums[t]);
      }
      if (block != 0) {
        prefetch_part<Format>(args, first + outputs, outputs, (block - 1) * slices + slice, (blocks - 1) * slices);
      }
    }
    for (size_t t = 0; t < tiles; ++t) {
      const size_t begin = first + t * kTileOutputs;
      const size_t tile_outputs = smaller(kTileOutputs, outputs - t * kTileOutputs);
      for (size_t r = 0; r < rows; ++r)
        Vec::store(y + (row + r) * args.y_stride + begin, Vec::sums(work.sums[t][r]), tile_outputs);
    }
  }
}

template <typename Format>
__attribute__((noinline)) void linear_tiled(const LinearArgs& args, const SlicedRows& x, float* y) {
  Workspace work;
  const size_t step = strip_outputs(slice_count(args.weight.in));
  for (size_t first = args.out_begin; first < args.out_end; first += step)
    multiply_strip<Format>(args, x, first, smaller(step, args.out_end - first), y, work);
}

/// Rows packed on the stack at once, in bytes: half of the second-level cache of the machines this is for.
inline constexpr size_t kPackedBytes = size_t{512} << 10;

/// An odd number of cache lines, or rows a power of two apart would share few sets of the first cache.
constexpr size_t packed_stride(size_t groups) {
  return groups * kGroupVectors + 1;
}

/// From four rows on a decoded tile is used often enough to pay for being stored.
inline constexpr size_t kTiledRows = 4;

/// Rows that nobody packed, in parts that fit the stack. Not inlined, so that its memory is free again when the outputs
/// below are made good.
template <typename Format>
__attribute__((noinline)) void multiply_all(const LinearArgs& args, size_t groups, size_t stride) {
  alignas(64) __m512i packed[kPackedBytes / sizeof(__m512i)];
  const size_t slices = slice_count(args.weight.in);
  const size_t fitting = kPackedBytes / sizeof(__m512i) / (slices * kTileVectors + 1);
  const size_t rows_max = fitting == 0 ? 1 : fitting;
  const size_t parts = (args.rows + rows_max - 1) / rows_max;
  size_t end = 0;
  for (size_t part = 0; part < parts; ++part) {
    const size_t first = end;
    end = args.rows * (part + 1) / parts;
    const size_t count = end - first;
    const float* from = args.x + first * args.x_stride;
    float* y = args.y + first * args.y_stride;
    if (count >= kTiledRows) {
      for (size_t r = 0; r < count; ++r)
        pack_sliced<Format>(from + r * args.x_stride, args.weight.in, r, count, packed);
      linear_tiled<Format>(args, {packed, count, groups}, y);
      continue;
    }
    const PackedRows x = {packed, stride, groups, count};
    for (size_t r = 0; r < count; ++r)
      pack_row<Format>(from + r * args.x_stride, args.weight.in, packed + r * stride);
    switch (count) {
      case 1: linear_direct<Format, 1>(args, x, y); break;
      case 2: linear_direct<Format, 2>(args, x, y); break;
      default: linear_direct<Format, 3>(args, x, y); break;
    }
  }
}

/// `exact` is the version that multiplies in binary32. It computes the outputs whose scaled weights bfloat16 does not
/// hold (scales near the ends of E8M0, which no release has), and matrices too wide for the packing buffer: what
/// decides is the output's own weights, so this too depends on nothing else.
template <typename Format>
void linear_rows(const LinearArgs& args, void (*exact)(const LinearArgs&) noexcept) {
  const size_t groups = (args.weight.in + kGroup - 1) / kGroup;
  const size_t stride = packed_stride(groups);
  if (groups == 0 || stride * sizeof(__m512i) > kPackedBytes) return exact(args);
  if (args.rows == 0 || args.out_begin >= args.out_end) return;
  if (args.packed_x != nullptr) {
    linear_tiled<Format>(args, {reinterpret_cast<const __m512i*>(args.packed_x), args.rows, groups}, args.y);
  } else {
    multiply_all<Format>(args, groups, stride);
  }
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
