#pragma once

// gcc 12 takes the undefined operand inside its own intrinsics for a variable of ours (gcc bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

/// Forces inlining where a call would throw away the blocking in registers.
#define TIDEPOOL_INLINE __attribute__((always_inline)) inline

// Included by *_avx512.cpp only. Everything here and in the *_vector.h templates that use it has internal linkage: a
// copy compiled with these instructions must never be the one the linker keeps for another file.
namespace tidepool::kernels {
namespace {

/// Sixteen binary32: what the vector kernels are written in terms of.
struct Vec {
  using F = __m512;
  static constexpr size_t kLanes = 16;

  TIDEPOOL_INLINE static F zero() { return _mm512_setzero_ps(); }
  TIDEPOOL_INLINE static F all(float value) { return _mm512_set1_ps(value); }
  TIDEPOOL_INLINE static F from_bits(uint32_t bits) {
    return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits)));
  }
  TIDEPOOL_INLINE static F load(const float* from) { return _mm512_loadu_ps(from); }
  TIDEPOOL_INLINE static void store(float* to, F value) { _mm512_storeu_ps(to, value); }
  /// The first `count` lanes; the others are zero, or left as they are in memory.
  TIDEPOOL_INLINE static F load(const float* from, size_t count) {
    return count >= kLanes ? load(from) : _mm512_maskz_loadu_ps(below(count), from);
  }
  TIDEPOOL_INLINE static void store(float* to, F value, size_t count) {
    if (count >= kLanes) return store(to, value);
    _mm512_mask_storeu_ps(to, below(count), value);
  }
  /// bfloat16, widened.
  TIDEPOOL_INLINE static F load_bf16(const void* from, size_t count) {
    const __m256i stored = count >= kLanes ? _mm256_loadu_si256(static_cast<const __m256i*>(from))
                                           : _mm256_maskz_loadu_epi16(below(count), from);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(stored), 16));
  }

  TIDEPOOL_INLINE static F add(F a, F b) { return _mm512_add_ps(a, b); }
  TIDEPOOL_INLINE static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  TIDEPOOL_INLINE static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  TIDEPOOL_INLINE static F div(F a, F b) { return _mm512_div_ps(a, b); }
  /// a * b + c, rounded once.
  TIDEPOOL_INLINE static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  /// c - a * b, rounded once.
  TIDEPOOL_INLINE static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  /// Where a or b is NaN these give b.
  TIDEPOOL_INLINE static F max(F a, F b) { return _mm512_max_ps(a, b); }
  TIDEPOOL_INLINE static F min(F a, F b) { return _mm512_min_ps(a, b); }
  TIDEPOOL_INLINE static F round_to_integer(F a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  /// a * 2^n for integral n, right down to the subnormals.
  TIDEPOOL_INLINE static F scale_by_power(F a, F n) { return _mm512_scalef_ps(a, n); }

  TIDEPOOL_INLINE static F bit_and(F a, F b) { return _mm512_and_ps(a, b); }
  TIDEPOOL_INLINE static F bit_or(F a, F b) { return _mm512_or_ps(a, b); }
  /// Lanes where a >= b (false for NaN) from `then`, the others from `otherwise`.
  TIDEPOOL_INLINE static F where_at_least(F a, F b, F then, F otherwise) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), otherwise, then);
  }
  /// One bit a lane: whether a > b (false for NaN).
  TIDEPOOL_INLINE static uint32_t greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  /// Rounds the magnitude's bit pattern to nearest even at bit `kBit`; lower bits become zero.
  template <int kBit>
  TIDEPOOL_INLINE static F round_bits(F a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, kBit), _mm512_set1_epi32(1));
    const __m512i half = _mm512_set1_epi32((1 << (kBit - 1)) - 1);
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, half));
    return _mm512_castsi512_ps(_mm512_andnot_si512(_mm512_set1_epi32((1 << kBit) - 1), rounded));
  }
  /// Nearest bfloat16, ties to even; a NaN keeps the upper bits of its payload and becomes quiet.
  TIDEPOOL_INLINE static F round_to_bf16(F a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    __m512i rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    rounded = _mm512_mask_add_epi32(rounded, is_odd, bits, _mm512_set1_epi32(0x8000));
    rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x00400000));
    return _mm512_castsi512_ps(_mm512_andnot_si512(_mm512_set1_epi32(0xffff), rounded));
  }

  /// (l, l + 2) and (l + 1, l + 3) within each four lanes, then the two; then fours (0, 2) and (1, 3), then the two.
  TIDEPOOL_INLINE static float sum(F a) {
    F values[kLanes];
    for (F& value : values)
      value = zero();
    values[0] = a;
    return _mm512_cvtss_f32(sums(values));
  }
  /// Lane i of the result is the sum over the lanes of values[i], in the order of sum().
  TIDEPOOL_INLINE static F sums(const F* values) {
    const F fours[4] = {add_quarters(values), add_quarters(values + 4), add_quarters(values + 8),
                        add_quarters(values + 12)};
    const F low = add(_mm512_shuffle_f32x4(fours[0], fours[1], 0x44), _mm512_shuffle_f32x4(fours[0], fours[1], 0xee));
    const F high = add(_mm512_shuffle_f32x4(fours[2], fours[3], 0x44), _mm512_shuffle_f32x4(fours[2], fours[3], 0xee));
    return add(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
  }
  TIDEPOOL_INLINE static float largest(F a) { return _mm512_reduce_max_ps(a); }
  /// The largest bit pattern, as a signed number: for magnitudes the largest magnitude, NaN above infinity.
  TIDEPOOL_INLINE static int32_t largest_bits(F a) { return _mm512_reduce_max_epi32(_mm512_castps_si512(a)); }

  /// kLanes / 2 values, each twice in a row; `count` of them are read.
  TIDEPOOL_INLINE static F load_twice(const float* from, size_t count) {
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    return _mm512_permutexvar_ps(twice, _mm512_maskz_loadu_ps(below(count < 8 ? count : 8), from));
  }
  TIDEPOOL_INLINE static F swap_pairs(F a) { return _mm512_permute_ps(a, 0xb1); }
  /// The sign bit in every even lane.
  TIDEPOOL_INLINE static F even_signs() {
    return _mm512_castsi512_ps(_mm512_set1_epi64(static_cast<int64_t>(0x80000000)));
  }
  TIDEPOOL_INLINE static F bit_xor(F a, F b) { return _mm512_xor_ps(a, b); }

  /// kLanes E2M1 codes, unscaled.
  TIDEPOOL_INLINE static F decode_fp4(const std::byte* codes) {
    const __m512 values = _mm512_set_ps(-6.0F, -4.0F, -3.0F, -2.0F, -1.5F, -1.0F, -0.5F, -0.0F, 6.0F, 4.0F, 3.0F, 2.0F,
                                        1.5F, 1.0F, 0.5F, 0.0F);
    // A byte in the low half of each quad, its upper nibble in the high half; a lookup sees the low four bits only.
    const __m512i pairs = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    return _mm512_permutexvar_ps(_mm512_or_si512(pairs, _mm512_slli_epi64(pairs, 28)), values);
  }
  /// kLanes E4M3 codes, unscaled.
  TIDEPOOL_INLINE static F decode_fp8(const std::byte* codes) {
    // The seven bits of magnitude are those of a binary16 with 2^8 less: exact for subnormals too. Code 127 is NaN.
    const __m128i stored = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(stored), 7),
                                          _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
    const __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0F));
    const __mmask16 is_nan =
        _mm_cmpeq_epi8_mask(_mm_or_si128(stored, _mm_set1_epi8(static_cast<char>(0x80))), _mm_set1_epi8(-1));
    return _mm512_mask_blend_ps(is_nan, value, from_bits(0x7fc00000));
  }
  /// Lane l holds the eight E2M1 codes at from[l] + offset.
  struct Nibbles {
    __m512i eight;
  };
  TIDEPOOL_INLINE static Nibbles gather_fp4(const std::byte* const* from, size_t offset) {
    alignas(64) uint32_t eight[kLanes];
    for (size_t l = 0; l < kLanes; ++l)
      __builtin_memcpy(eight + l, from[l] + offset, 4);
    return {_mm512_load_si512(eight)};
  }
  /// Code `kNibble` of each lane.
  template <int kNibble>
  TIDEPOOL_INLINE static F decode_nibble(Nibbles nibbles) {
    const __m512 values = _mm512_set_ps(-6.0F, -4.0F, -3.0F, -2.0F, -1.5F, -1.0F, -0.5F, -0.0F, 6.0F, 4.0F, 3.0F, 2.0F,
                                        1.5F, 1.0F, 0.5F, 0.0F);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(nibbles.eight, 4 * kNibble), values);
  }

 private:
  /// Lane i of each four lanes: the sum of these four lanes of v[i].
  TIDEPOOL_INLINE static F add_quarters(const F* v) {
    const F first = add(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    const F second = add(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    const __m512d a = _mm512_castps_pd(first);
    const __m512d b = _mm512_castps_pd(second);
    return add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  TIDEPOOL_INLINE static __mmask16 below(size_t count) {
    return static_cast<__mmask16>(count >= kLanes ? 0xffffU : (1U << count) - 1U);
  }
};

}  // namespace
}  // namespace tidepool::kernels
