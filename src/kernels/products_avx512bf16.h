#pragma once

#include "kernels/few_rows_avx512bf16.h"
#include "kernels/kernel_table_internal.h"
#include "kernels/many_rows_avx512bf16.h"

// y = W x by VDPBF16PS for any Format of weights (linear_avx512bf16.cpp): 32 products of bfloat16 in one instruction,
// added to 16 sums of binary32.
//
// Weights are walked in groups of 128 columns, four vectors of bfloat16 each, their scales included (exact: a Format
// says for which). Which column sits where follows from how the codes unpack cheapest; the rows of x are put in the
// same order once per call. Sum l of a row and an output takes the products of lane l of all vectors, in order; at the
// end the 16 sums are added up as Vec::sum does. Every path does exactly this, always with whole groups (columns that
// do not exist are zeros on both sides), so results depend neither on the path nor on neighbours.

namespace tidepool::kernels {
namespace {

/// Rows packed on the stack at once, in bytes: half of the second-level cache of the machines this is for.
inline constexpr size_t kPackedBytes = size_t{512} << 10;

/// An odd number of cache lines, or rows a power of two apart would share few sets of the first cache.
constexpr size_t packed_stride(size_t groups) {
  return groups * kGroupVectors + 1;
}

/// From so many rows on weights are used often enough to pay for being turned and stored.
inline constexpr size_t kManyRows = 8;

/// Fewer than kManyRows rows, packed on the stack.
template <typename Format>
void multiply_few(const LinearArgs& args, size_t groups, size_t first, size_t count, __m512i* packed) {
  const PackedRows x = {packed, packed_stride(groups), groups, count};
  for (size_t r = 0; r < count; ++r) {
    for (size_t g = 0; g < groups; ++g) {
      const Group group = pack_group<Format>(args.x + (first + r) * args.x_stride, args.weight.in, g);
      for (size_t v = 0; v < kGroupVectors; ++v)
        _mm512_store_si512(packed + r * x.stride + g * kGroupVectors + v, group.vector[v]);
    }
  }
  float* y = args.y + first * args.y_stride;
  switch (count) {
    case 1: return linear_direct<Format, 1>(args, x, y);
    case 2: return linear_direct<Format, 2>(args, x, y);
    case 3: return linear_direct<Format, 3>(args, x, y);
    case 4: return linear_direct<Format, 4>(args, x, y);
    case 5: return linear_direct<Format, 5>(args, x, y);
    case 6: return linear_direct<Format, 6>(args, x, y);
    default: return linear_direct<Format, 7>(args, x, y);
  }
}

/// Rows that nobody packed, in parts that fit the stack. Not inlined, so that its memory is free again when the outputs
/// below are made good.
template <typename Format>
__attribute__((noinline)) void multiply_all(const LinearArgs& args, size_t groups) {
  alignas(64) __m512i packed[kPackedBytes / sizeof(__m512i)];
  const size_t chain_pairs = groups * kGroupVectors;
  const bool has_strips = strip_vectors(chain_pairs) != 0;
  const size_t fitting = kPackedBytes / sizeof(__m512i) / packed_stride(groups);
  const size_t rows_max = has_strips ? fitting : smaller(fitting, kManyRows - 1);
  const size_t parts = (args.rows + rows_max - 1) / rows_max;
  size_t end = 0;
  for (size_t part = 0; part < parts; ++part) {
    const size_t first = end;
    end = args.rows * (part + 1) / parts;
    const size_t count = end - first;
    if (count < kManyRows) {
      multiply_few<Format>(args, groups, first, count, packed);
      continue;
    }
    const PackArgs pack = {.x = args.x + first * args.x_stride,
                           .x_stride = args.x_stride,
                           .in = args.weight.in,
                           .rows = count,
                           .begin = 0,
                           .end = count,
                           .packed = reinterpret_cast<std::byte*>(packed)};
    pack_inputs_as<Format>(pack);
    linear_many<Format>(args, {count, chain_pairs}, pack.packed, args.y + first * args.y_stride);
  }
}

/// `exact` is the version that multiplies in binary32. It computes the outputs whose scaled weights bfloat16 does not
/// hold (scales near the ends of E8M0, which no release has), and matrices too wide for the packing buffer: what
/// decides is the output's own weights, so this too depends on nothing else.
template <typename Format>
void linear_rows(const LinearArgs& args, void (*exact)(const LinearArgs&) noexcept) {
  const size_t groups = (args.weight.in + kGroup - 1) / kGroup;
  if (groups == 0 || packed_stride(groups) * sizeof(__m512i) > kPackedBytes) return exact(args);
  if (args.rows == 0 || args.out_begin >= args.out_end) return;
  if (args.packed_x != nullptr) {
    linear_many<Format>(args, {args.rows, groups * kGroupVectors}, args.packed_x, args.y);
  } else {
    multiply_all<Format>(args, groups);
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
