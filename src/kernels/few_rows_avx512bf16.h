#pragma once

#include "kernels/decode_avx512bf16.h"
#include "kernels/kernel_table_internal.h"
#include "kernels/weight_row.h"

// Products by VDPBF16PS (products_avx512bf16.h) for few rows of x: weights are decoded in registers.

namespace tidepool::kernels {
namespace {

inline constexpr size_t kGroup = 128;
inline constexpr size_t kGroupBlocks = kGroup / kBlock;
inline constexpr size_t kGroupVectors = 4;

/// A group of one output's weights, or of a row of x.
struct Group {
  __m512i vector[kGroupVectors];
};

/// Where a group of 16 outputs' weights lies.
struct PanelGroup {
  const std::byte* codes[Vec::kLanes];
  const uint8_t* scales[Vec::kLanes];
};

TIDEPOOL_INLINE Vec::F add_products(Vec::F sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

/// Group `g` of a row, all of whose columns exist.
template <typename Format>
TIDEPOOL_INLINE Group load_whole(const WeightRow<Format>& row, size_t g) {
  const uint8_t* scales = row.scales;
  if constexpr (Format::kHasScales) scales += g * kGroupBlocks;
  return Format::decode(row.codes + g * Format::kGroupBytes, scales);
}

/// Codes and scales of group `g` of a row of `in` columns as far as they exist; behind them `codes` [kGroupBytes] and
/// `scales` [kGroupBlocks] stay what they were.
template <typename Format>
void copy_cut(const WeightRow<Format>& row, size_t in, size_t g, std::byte* codes, uint8_t* scales) {
  const size_t begin = g * Format::kGroupBytes;
  __builtin_memcpy(codes, row.codes + begin, smaller(Format::kGroupBytes, Format::row_bytes(in) - begin));
  if constexpr (Format::kHasScales) {
    const size_t first = g * kGroupBlocks;
    __builtin_memcpy(scales, row.scales + first, smaller(kGroupBlocks, (in + kBlock - 1) / kBlock - first));
  }
}

/// Group `g` of a row of `in` columns, filled up with zeros where it is cut.
template <typename Format>
Group load_cut(const WeightRow<Format>& row, size_t in, size_t g) {
  alignas(64) std::byte codes[Format::kGroupBytes] = {};
  uint8_t scales[kGroupBlocks] = {};
  copy_cut(row, in, g, codes, scales);
  return Format::decode(codes, scales);
}

/// Rows of x, each `stride` vectors after the one before.
struct PackedRows {
  __m512i* vectors;
  size_t stride;
  size_t groups;
  size_t count;

  [[nodiscard]] TIDEPOOL_INLINE const __m512i* row(size_t r) const { return vectors + r * stride; }
};

/// Group `g` of a row of `in` values, in the format's order, filled up with zeros where it is cut.
template <typename Format>
TIDEPOOL_INLINE Group pack_group(const float* x, size_t in, size_t g) {
  const float* from = x + g * kGroup;
  const size_t count = in - g * kGroup;
  if (count >= kGroup) return Format::pack(from);
  alignas(64) float padded[kGroup] = {};
  __builtin_memcpy(padded, from, count * sizeof(float));
  return Format::pack(padded);
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
      for (size_t o = 0; o < kOutputs; ++o) {
        weights[o].prefetch_group(g);
        group[o] = load_whole(weights[o], g);
      }
      add(group, x, g);
    }
    if (whole < x.groups) {
      for (size_t o = 0; o < kOutputs; ++o)
        group[o] = load_cut(weights[o], args.weight.in, whole);
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

}  // namespace
}  // namespace tidepool::kernels
