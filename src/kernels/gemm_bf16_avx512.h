#pragma once

// Operands of products in bfloat16, for pairs (gemm_avx512bf16.cpp) and tiles (gemm_tiles_amx.h). A panel of up to 16
// lanes is [depth / 2, 16] pairs: two consecutive terms of a lane side by side. Depths are padded with zeros to whole
// steps of kStepTerms, lanes to 16, so kernels never mask their inputs.

#include "kernels/gemm.h"
#include "kernels/vec_avx512.h"

namespace tidepool::kernels {
namespace {

inline constexpr size_t kGroupLanes = 16;  ///< lanes of a group of pairs
inline constexpr size_t kStepTerms = 32;   ///< terms of a step: what a product of tiles takes
inline constexpr size_t kStepPairs = kStepTerms / 2;

TIDEPOOL_INLINE size_t padded_depth(size_t depth) {
  return (depth + kStepTerms - 1) / kStepTerms * kStepTerms;
}
/// Bytes of a group of 16 lanes.
TIDEPOOL_INLINE size_t group_bytes(size_t depth) {
  return padded_depth(depth) * kGroupLanes * 2;
}

TIDEPOOL_INLINE __mmask16 lanes_below(size_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffffU : (1U << count) - 1U);
}

/// Sixteen values, rounded; bfloat16 in the upper halves.
TIDEPOOL_INLINE __m512i rounded(const float* from, size_t count) {
  return _mm512_castps_si512(Vec::round_to_bf16(_mm512_maskz_loadu_ps(lanes_below(count), from)));
}

/// Pairs (even, odd): even in the lower half.
TIDEPOOL_INLINE __m512i pair_up(__m512i even, __m512i odd) {
  return _mm512_or_si512(_mm512_srli_epi32(even, 16), odd);
}

/// Turns 16 vectors of 16 dwords around: dword i of out[j] is dword j of in[i].
TIDEPOOL_INLINE void transpose(__m512i (&v)[16]) {
  __m512i t[16];
  for (size_t i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    const __m512i b = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(v[i + 2], v[i + 3]);
    const __m512i d = _mm512_unpackhi_epi32(v[i + 2], v[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
  // Quarter q of t[4 g + r] holds column 4 q + r of rows 4 g to 4 g + 3.
  for (size_t r = 0; r < 4; ++r) {
    const __m512i a = _mm512_shuffle_i32x4(t[r], t[4 + r], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(t[r], t[4 + r], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(t[8 + r], t[12 + r], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(t[8 + r], t[12 + r], 0xdd);
    v[r] = _mm512_shuffle_i32x4(a, c, 0x88);
    v[4 + r] = _mm512_shuffle_i32x4(b, d, 0x88);
    v[8 + r] = _mm512_shuffle_i32x4(a, c, 0xdd);
    v[12 + r] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

/// Up to 32 terms of one lane as 16 pairs, in order.
TIDEPOOL_INLINE __m512i lane_pairs(const float* from, size_t terms) {
  // The even dwords of 32 values are their first and second halves' pairs' lower parts.
  const __m512i first = rounded(from, terms);
  const __m512i second = terms > 16 ? rounded(from + 16, terms - 16) : _mm512_setzero_si512();
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return pair_up(_mm512_permutex2var_epi32(first, even, second), _mm512_permutex2var_epi32(first, odd, second));
}

/// One step of a group whose lanes are rows of memory: lane l of pairs[l].
TIDEPOOL_INLINE void load_step_rows(const GemmPackArgs& args, size_t first_lane, size_t step, __m512i (&pairs)[16]) {
  const size_t begin = step * kStepTerms;
  for (size_t l = 0; l < kGroupLanes; ++l) {
    pairs[l] = first_lane + l < args.lanes
                   ? lane_pairs(args.from + (first_lane + l) * args.lane_stride + begin, args.depth - begin)
                   : _mm512_setzero_si512();
  }
}

/// One step of a group whose lanes are columns of memory: pairs[p] has pair p of each lane.
TIDEPOOL_INLINE void load_step_columns(const GemmPackArgs& args, size_t first_lane, size_t step, __m512i (&pairs)[16]) {
  const size_t lanes = first_lane < args.lanes ? args.lanes - first_lane : 0;
  for (size_t p = 0; p < kStepPairs; ++p) {
    const size_t term = step * kStepTerms + 2 * p;
    const float* from = args.from + first_lane + term * args.step_stride;
    const __m512i even = term < args.depth ? rounded(from, lanes) : _mm512_setzero_si512();
    const __m512i odd = term + 1 < args.depth ? rounded(from + args.step_stride, lanes) : _mm512_setzero_si512();
    pairs[p] = pair_up(even, odd);
  }
}

/// Lanes [first_lane, first_lane + 16) of a panel as [padded depth / 2, 16] pairs.
inline void pack_pairs(const GemmPackArgs& args, size_t first_lane, std::byte* out) {
  const size_t steps = padded_depth(args.depth) / kStepTerms;
  for (size_t step = 0; step < steps; ++step) {
    __m512i pairs[16];
    if (args.step_stride == 1) {
      load_step_rows(args, first_lane, step, pairs);
      transpose(pairs);
    } else {
      load_step_columns(args, first_lane, step, pairs);
    }
    for (size_t p = 0; p < kStepPairs; ++p)
      _mm512_store_si512(out + (step * kStepPairs + p) * 64, pairs[p]);
  }
}

/// The right operand's panel of 32 columns: two groups, one behind the other.
inline constexpr size_t kPairColumns = 2 * kGroupLanes;
inline size_t pair_columns_bytes(size_t depth) noexcept {
  return 2 * group_bytes(depth);
}
inline void pack_pair_columns(const GemmPackArgs& args) noexcept {
  pack_pairs(args, 0, args.packed);
  pack_pairs(args, kGroupLanes, args.packed + group_bytes(args.depth));
}

}  // namespace
}  // namespace tidepool::kernels
