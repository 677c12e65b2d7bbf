#pragma once

#include <utility>

#include "kernels/kernel_table.h"
#include "kernels/math_vector.h"
#include "kernels/weight_row.h"

// y = W x for any Vec and any Format of weights (linear_avx2.cpp, linear_avx512.cpp).
//
// Weights are walked kGroup columns at a time, as kVectors vectors. Which column sits in which lane follows from how
// the codes unpack cheapest (Format::column); the activations are put in the same order once per call. A lane belongs
// to the same 32-column block in all vectors of the group, so one vector of scales serves it:
//   b = w0 * x0 + w1 * x1 + ... (fused, in this order);  sum = sum + b * scale (fused);  y = the lanes of sum, added.
// Every path below does exactly these operations per row and output, so results do not depend on the path.

namespace tidepool::kernels {
namespace {

inline constexpr size_t kLanes = Vec::kLanes;

/// `count` values of one row, in the format's order, filled up with zeros to whole groups.
template <typename Format>
void pack_row(const float* x, size_t count, float* packed) {
  for (size_t begin = 0; begin < count; begin += Format::kGroup) {
    const size_t rest = count - begin;
    float* group = packed + begin;
    if (rest >= Format::kGroup) {
      Format::pack(x + begin, group);
      continue;
    }
    alignas(64) float padded[Format::kGroup] = {};
    for (size_t i = 0; i < rest; ++i)
      padded[i] = x[begin + i];
    Format::pack(padded, group);
  }
}

/// Format::pack for a format whose vectors hold consecutive columns.
template <size_t kVectors>
TIDEPOOL_INLINE void pack_straight(const float* x, float* packed) {
  for (size_t v = 0; v < kVectors; ++v)
    Vec::store(packed + v * kLanes, Vec::load(x + v * kLanes));
}

/// The codes and scales of one group, decoded as far as its vectors share work.
template <typename Format>
struct WeightGroup {
  typename Format::Raw raw;
  Vec::F scales;
};

/// How many groups of the outputs up to `last_output` can be loaded in place: those that are full and, where a load
/// touches bytes after its group, do not end the matrix.
template <typename Format>
size_t whole_groups(const MatrixView& weight, size_t last_output) {
  const size_t row_bytes = Format::row_bytes(weight.in);
  const size_t after = last_output + 1 < weight.out ? 0 : Format::kBytesAfterGroup;
  return row_bytes < after ? 0 : (row_bytes - after) / Format::kGroupBytes;
}

/// Group `g` of a row, one that can be loaded in place.
template <typename Format>
TIDEPOOL_INLINE WeightGroup<Format> load_whole_group(const WeightRow<Format>& row, size_t g) {
  row.prefetch_group(g);
  if constexpr (Format::kHasScales) {
    return {Format::load(row.codes + g * Format::kGroupBytes), Format::scales(row.scales + g * Format::kGroupBlocks)};
  } else {
    return {Format::load(row.codes + g * Format::kGroupBytes), Vec::zero()};
  }
}

/// Group `g` of a row of `in` columns by way of a copy, filled up with zero codes (and scales of code 0, which are
/// finite) where it is cut.
template <typename Format>
WeightGroup<Format> load_copied_group(const WeightRow<Format>& row, size_t in, size_t g) {
  alignas(64) std::byte codes[Format::kGroupBytes + Format::kBytesAfterGroup] = {};
  uint8_t scales[Format::kGroupBlocks] = {};
  const size_t begin = g * Format::kGroupBytes;
  __builtin_memcpy(codes, row.codes + begin, smaller(Format::kGroupBytes, Format::row_bytes(in) - begin));
  if constexpr (Format::kHasScales) {
    const size_t first = g * Format::kGroupBlocks;
    __builtin_memcpy(scales, row.scales + first, smaller(Format::kGroupBlocks, (in + kBlock - 1) / kBlock - first));
    return {Format::load(codes), Format::scales(scales)};
  } else {
    return {Format::load(codes), Vec::zero()};
  }
}

template <typename Format>
inline Vec::F add_group(Vec::F sum, Vec::F group, Vec::F scales) {
  return Format::kHasScales ? Vec::fma(group, scales, sum) : Vec::add(sum, group);
}

/// One step of a group, for `kOutputs` outputs and `kRows` rows: each weight serves all rows, each load of
/// x all outputs, and the independent chains of additions hide each other's latency.
template <size_t kOutputs, size_t kRows>
TIDEPOOL_INLINE void multiply_step(bool is_first, const Vec::F* w, const float* x, size_t stride,
                                   Vec::F (&group)[kOutputs][kRows]) {
  for (size_t r = 0; r < kRows; ++r) {
    const Vec::F value = Vec::load(x + r * stride);
    for (size_t o = 0; o < kOutputs; ++o) {
      group[o][r] = is_first ? Vec::mul(w[o], value) : Vec::fma(w[o], value, group[o][r]);
    }
  }
}

template <typename Format, size_t kVector, size_t kOutputs, size_t kRows>
TIDEPOOL_INLINE void decode_step(const WeightGroup<Format> (&weights)[kOutputs], const float* x, size_t stride,
                                 Vec::F (&group)[kOutputs][kRows]) {
  Vec::F w[kOutputs];
  for (size_t o = 0; o < kOutputs; ++o)
    w[o] = Format::template vector<kVector>(weights[o].raw);
  multiply_step(kVector == 0, w, x + kVector * kLanes, stride, group);
}

template <typename Format, size_t kOutputs, size_t kRows, size_t... kVector>
TIDEPOOL_INLINE void decode_steps(const WeightGroup<Format> (&weights)[kOutputs], const float* x, size_t stride,
                                  Vec::F (&group)[kOutputs][kRows], std::index_sequence<kVector...> /*steps*/) {
  (decode_step<Format, kVector>(weights, x, stride, group), ...);
}

/// Adds one group of `kOutputs` outputs times `kRows` packed rows to the sums.
template <typename Format, size_t kOutputs, size_t kRows>
TIDEPOOL_INLINE void multiply_group(const WeightGroup<Format> (&weights)[kOutputs], const float* x, size_t stride,
                                    Vec::F (&sum)[kOutputs][kRows]) {
  Vec::F group[kOutputs][kRows];
  decode_steps<Format>(weights, x, stride, group, std::make_index_sequence<Format::kVectors>());
  for (size_t o = 0; o < kOutputs; ++o) {
    for (size_t r = 0; r < kRows; ++r)
      sum[o][r] = add_group<Format>(sum[o][r], group[o][r], weights[o].scales);
  }
}

/// `kOutputs` outputs, `spread` apart, against `kRows` packed rows, weights decoded in registers: for few rows.
template <typename Format, size_t kOutputs, size_t kRows>
void dot_direct(const LinearArgs& args, size_t first_output, size_t spread, const float* packed, size_t stride,
                float* y) {
  const size_t whole = whole_groups<Format>(args.weight, first_output + (kOutputs - 1) * spread);
  WeightRow<Format> row[kOutputs];
  Vec::F sum[kOutputs][kRows];
  for (size_t o = 0; o < kOutputs; ++o) {
    row[o] = WeightRow<Format>(args.weight, first_output + o * spread);
    for (size_t r = 0; r < kRows; ++r)
      sum[o][r] = Vec::zero();
  }
  for (size_t g = 0; g < whole; ++g) {
    WeightGroup<Format> weights[kOutputs];
    for (size_t o = 0; o < kOutputs; ++o)
      weights[o] = load_whole_group(row[o], g);
    multiply_group(weights, packed + g * Format::kGroup, stride, sum);
  }
  for (size_t g = whole; g * Format::kGroup < args.weight.in; ++g) {
    WeightGroup<Format> weights[kOutputs];
    for (size_t o = 0; o < kOutputs; ++o)
      weights[o] = load_copied_group(row[o], args.weight.in, g);
    multiply_group(weights, packed + g * Format::kGroup, stride, sum);
  }
  for (size_t o = 0; o < kOutputs; ++o) {
    for (size_t r = 0; r < kRows; ++r)
      y[r * args.y_stride + first_output + o * spread] = Vec::sum(sum[o][r]);
  }
}

/// Outputs that are worked on together, as many as the registers hold.
template <size_t kRows>
inline constexpr size_t kDirectOutputs = kLanes == 16 && kRows == 1 ? 4 : 2;

/// The outputs of one step are far apart, so that each walks a region of memory of its own: the processor's prefetch
/// stops at the end of every page, and streams that reach it at different times cover for each other. On one core four
/// such streams read 40 % more than four neighbouring outputs.
template <typename Format, size_t kRows>
void linear_direct(const LinearArgs& args, const float* packed, size_t stride, float* y) {
  constexpr size_t kOutputs = kDirectOutputs<kRows>;
  const size_t spread = (args.out_end - args.out_begin) / kOutputs;
  for (size_t o = 0; o < spread; ++o) {
    dot_direct<Format, kOutputs, kRows>(args, args.out_begin + o, spread, packed, stride, y);
  }
  for (size_t o = args.out_begin + kOutputs * spread; o < args.out_end; ++o)
    dot_direct<Format, 1, kRows>(args, o, 0, packed, stride, y);
}

/// Many rows: the weights of a few outputs are decoded, some groups at a time, into a tile that stays in the first
/// cache, and multiplied with four rows at a time. With 16 lanes (and 32 registers) that is 16 sums in registers and
/// half a load per multiplication; with 8 lanes (16 registers) 8 sums.
inline constexpr size_t kTileOutputs = Vec::kLanes / 4;
inline constexpr size_t kTileRows = 4;
inline constexpr size_t kTileGroups = 4;
inline constexpr size_t kRowsMax = 16;

template <typename Format>
struct alignas(64) Tile {
  Vec::F w[kTileGroups][Format::kVectors][kTileOutputs];
  Vec::F scales[kTileGroups][kTileOutputs];
  Vec::F sum[kRowsMax][kTileOutputs];
};

template <typename Format, size_t... kVector>
TIDEPOOL_INLINE void store_steps(const typename Format::Raw& raw, Vec::F (&w)[Format::kVectors][kTileOutputs], size_t o,
                                 std::index_sequence<kVector...> /*steps*/) {
  ((w[kVector][o] = Format::template vector<kVector>(raw)), ...);
}

/// The outputs of a tile: `count` of them from `first` on, `spread` apart.
template <typename Format>
struct TileOutputs {
  size_t first;
  size_t spread;
  size_t count;
  size_t whole;  ///< groups that all of them can load in place
  WeightRow<Format> row[kTileOutputs];

  TileOutputs(const MatrixView& weight, size_t first_output, size_t output_spread, size_t output_count)
      : first(first_output),
        spread(output_spread),
        count(output_count),
        whole(whole_groups<Format>(weight, first + (count - 1) * spread)) {
    for (size_t o = 0; o < count; ++o)
      row[o] = WeightRow<Format>(weight, first + o * spread);
  }
};

/// Decodes `count` groups of the outputs; those that are missing stay what they were.
template <typename Format>
void fill_tile(const TileOutputs<Format>& outputs, size_t in, size_t first_group, size_t count, Tile<Format>& tile) {
  for (size_t g = 0; g < count; ++g) {
    for (size_t o = 0; o < outputs.count; ++o) {
      const WeightGroup<Format> weights = first_group + g < outputs.whole
                                              ? load_whole_group(outputs.row[o], first_group + g)
                                              : load_copied_group(outputs.row[o], in, first_group + g);
      store_steps<Format>(weights.raw, tile.w[g], o, std::make_index_sequence<Format::kVectors>());
      tile.scales[g][o] = weights.scales;
    }
  }
}

/// Adds `count` groups of the tile times `kRows` rows to the sums of these rows.
template <typename Format, size_t kRows>
void multiply_tile(Tile<Format>& tile, size_t count, const float* x, size_t stride, Vec::F (*sum)[kTileOutputs]) {
  for (size_t g = 0; g < count; ++g) {
    Vec::F group[kTileOutputs][kRows];
    const float* group_x = x + g * Format::kGroup;
    multiply_step(true, tile.w[g][0], group_x, stride, group);
    for (size_t v = 1; v < Format::kVectors; ++v) {
      multiply_step(false, tile.w[g][v], group_x + v * kLanes, stride, group);
    }
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t o = 0; o < kTileOutputs; ++o) {
        sum[r][o] = add_group<Format>(sum[r][o], group[o][r], tile.scales[g][o]);
      }
    }
  }
}

template <typename Format>
void multiply_rows(Tile<Format>& tile, size_t count, const float* x, size_t stride, size_t rows) {
  size_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    multiply_tile<Format, kTileRows>(tile, count, x + r * stride, stride, tile.sum + r);
  }
  for (; r < rows; ++r)
    multiply_tile<Format, 1>(tile, count, x + r * stride, stride, tile.sum + r);
}

template <typename Format>
void dot_tiled(const LinearArgs& args, const TileOutputs<Format>& outputs, const float* packed, size_t stride,
               size_t rows, Tile<Format>& tile, float* y) {
  const size_t groups = stride / Format::kGroup;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < kTileOutputs; ++o)
      tile.sum[r][o] = Vec::zero();
  }
  for (size_t g = 0; g < groups; g += kTileGroups) {
    const size_t count = smaller(kTileGroups, groups - g);
    fill_tile(outputs, args.weight.in, g, count, tile);
    multiply_rows<Format>(tile, count, packed + g * Format::kGroup, stride, rows);
  }
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < outputs.count; ++o)
      y[r * args.y_stride + outputs.first + o * outputs.spread] = Vec::sum(tile.sum[r][o]);
  }
}

/// Outputs are far apart for the reason linear_direct gives.
template <typename Format>
void linear_tiled(const LinearArgs& args, const float* packed, size_t stride, size_t rows, float* y) {
  Tile<Format> tile;
  __builtin_memset(&tile, 0, sizeof(tile));
  const size_t outputs = args.out_end - args.out_begin;
  const size_t spread = outputs / kTileOutputs;
  for (size_t o = 0; o < spread; ++o) {
    dot_tiled(args, TileOutputs<Format>(args.weight, args.out_begin + o, spread, kTileOutputs), packed, stride, rows,
              tile, y);
  }
  const size_t rest = outputs % kTileOutputs;
  if (rest == 0) return;
  dot_tiled(args, TileOutputs<Format>(args.weight, args.out_end - rest, 1, rest), packed, stride, rows, tile, y);
}

/// Activations packed on the stack at once: 512 KiB, a quarter of the second-level cache of the machines this is for.
inline constexpr size_t kPackedFloats = 131072;

template <typename Format>
void linear_packed(const LinearArgs& args, const float* packed, size_t stride, size_t rows, float* y) {
  switch (rows) {
    case 1: return linear_direct<Format, 1>(args, packed, stride, y);
    case 2: return linear_direct<Format, 2>(args, packed, stride, y);
    case 3: return linear_direct<Format, 3>(args, packed, stride, y);
    // From four rows on a decoded tile is used often enough to pay for being stored.
    default: return linear_tiled<Format>(args, packed, stride, rows, y);
  }
}

template <typename Format>
void linear_rows(const LinearArgs& args) {
  const size_t stride = (args.weight.in + Format::kGroup - 1) / Format::kGroup * Format::kGroup;
  alignas(64) float packed[kPackedFloats];
  const size_t rows_at_once = smaller(kRowsMax, kPackedFloats / (stride == 0 ? 1 : stride));
  for (size_t first = 0; first < args.rows; first += rows_at_once) {
    const size_t rows = smaller(rows_at_once, args.rows - first);
    for (size_t r = 0; r < rows; ++r) {
      pack_row<Format>(args.x + (first + r) * args.x_stride, args.weight.in, packed + r * stride);
    }
    linear_packed<Format>(args, packed, stride, rows, args.y + first * args.y_stride);
  }
}

}  // namespace
}  // namespace tidepool::kernels
