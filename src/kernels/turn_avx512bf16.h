#pragma once

#include "kernels/vec_avx512.h"

// Sixteen vectors turned: what was one element of all becomes one vector.

namespace tidepool::kernels {
namespace {

inline constexpr size_t kChains = Vec::kLanes;
/// Leaves of the tree that Vec::sum is, left to right; and, being its own inverse, the place of each chain there.
inline constexpr size_t kChainOrder[kChains] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};

/// Where a group of 16 outputs' weights goes: of each chain four pairs.
struct TurnedPanel {
  __m512i* strip;
  size_t chain_stride;
  size_t pair_stride;

  /// Pair `v` of the group: dword `chain` of each output's vector v.
  TIDEPOOL_INLINE void store(size_t chain, size_t v, __m512i pair) const {
    _mm512_store_si512(strip + kChainOrder[chain] * chain_stride + v * pair_stride, pair);
  }
  TIDEPOOL_INLINE void next_group() { strip += 4 * pair_stride; }
};

/// In each 128 bits: dword j of vector i becomes dword i of vector j.
TIDEPOOL_INLINE void turn_dwords(const __m512i* in, __m512i* out) {
  const __m512i low01 = _mm512_unpacklo_epi32(in[0], in[1]);
  const __m512i high01 = _mm512_unpackhi_epi32(in[0], in[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(in[2], in[3]);
  const __m512i high23 = _mm512_unpackhi_epi32(in[2], in[3]);
  out[0] = _mm512_unpacklo_epi64(low01, low23);
  out[1] = _mm512_unpackhi_epi64(low01, low23);
  out[2] = _mm512_unpacklo_epi64(high01, high23);
  out[3] = _mm512_unpackhi_epi64(high01, high23);
}

/// In each 128 bits, words w and w + 1 of all four vectors become the lower and the upper half of vector w / 2.
TIDEPOOL_INLINE void turn_words(const __m512i* in, __m512i* out) {
  const __m512i low01 = _mm512_unpacklo_epi16(in[0], in[1]);
  const __m512i high01 = _mm512_unpackhi_epi16(in[0], in[1]);
  const __m512i low23 = _mm512_unpacklo_epi16(in[2], in[3]);
  const __m512i high23 = _mm512_unpackhi_epi16(in[2], in[3]);
  out[0] = _mm512_unpacklo_epi32(low01, low23);
  out[1] = _mm512_unpackhi_epi32(low01, low23);
  out[2] = _mm512_unpacklo_epi32(high01, high23);
  out[3] = _mm512_unpackhi_epi32(high01, high23);
}

/// Quarter j of vector i, 128 bits, becomes quarter i of vector j.
TIDEPOOL_INLINE void turn_quarters(__m512i a, __m512i b, __m512i c, __m512i d, __m512i* out) {
  const __m512i low01 = _mm512_shuffle_i32x4(a, b, 0x44);
  const __m512i high01 = _mm512_shuffle_i32x4(a, b, 0xee);
  const __m512i low23 = _mm512_shuffle_i32x4(c, d, 0x44);
  const __m512i high23 = _mm512_shuffle_i32x4(c, d, 0xee);
  out[0] = _mm512_shuffle_i32x4(low01, low23, 0x88);
  out[1] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
  out[2] = _mm512_shuffle_i32x4(high01, high23, 0x88);
  out[3] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
}

/// Dword l of vector i becomes dword i of the vector that is passed to store(l, vector).
template <typename Store>
TIDEPOOL_INLINE void turn(const __m512i* vectors, const Store& store) {
  __m512i fours[4][4];
  for (size_t i = 0; i < 4; ++i)
    turn_dwords(vectors + 4 * i, fours[i]);
  for (size_t j = 0; j < 4; ++j) {
    __m512i turned[4];
    turn_quarters(fours[0][j], fours[1][j], fours[2][j], fours[3][j], turned);
    for (size_t q = 0; q < 4; ++q)
      store(4 * q + j, turned[q]);
  }
}

}  // namespace
}  // namespace tidepool::kernels
