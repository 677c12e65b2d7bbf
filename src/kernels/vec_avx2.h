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

// Included by *_avx2.cpp only; see vec_avx512.h.
namespace tidepool::kernels {
namespace {

/// Eight binary32: what the vector kernels are written in terms of. Meanings as in vec_avx512.h.
struct Vec {
  using F = __m256;
  static constexpr size_t kLanes = 8;

  TIDEPOOL_INLINE static F zero() { return _mm256_setzero_ps(); }
  TIDEPOOL_INLINE static F all(float value) { return _mm256_set1_ps(value); }
  TIDEPOOL_INLINE static F from_bits(uint32_t bits) {
    return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(bits)));
  }
  TIDEPOOL_INLINE static F load(const float* from) { return _mm256_loadu_ps(from); }
  TIDEPOOL_INLINE static void store(float* to, F value) { _mm256_storeu_ps(to, value); }
  TIDEPOOL_INLINE static F load(const float* from, size_t count) {
    return count >= kLanes ? load(from) : _mm256_maskload_ps(from, below(count));
  }
  TIDEPOOL_INLINE static void store(float* to, F value, size_t count) {
    if (count >= kLanes) return store(to, value);
    _mm256_maskstore_ps(to, below(count), value);
  }
  TIDEPOOL_INLINE static F load_bf16(const void* from, size_t count) {
    __m128i stored = _mm_setzero_si128();
    if (count >= kLanes) {
      stored = _mm_loadu_si128(static_cast<const __m128i*>(from));
    } else {
      alignas(16) uint16_t part[kLanes] = {};
      __builtin_memcpy(part, from, count * sizeof(uint16_t));
      stored = _mm_load_si128(reinterpret_cast<const __m128i*>(part));
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(stored), 16));
  }

  TIDEPOOL_INLINE static F add(F a, F b) { return _mm256_add_ps(a, b); }
  TIDEPOOL_INLINE static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  TIDEPOOL_INLINE static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  TIDEPOOL_INLINE static F div(F a, F b) { return _mm256_div_ps(a, b); }
  TIDEPOOL_INLINE static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  TIDEPOOL_INLINE static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  TIDEPOOL_INLINE static F max(F a, F b) { return _mm256_max_ps(a, b); }
  TIDEPOOL_INLINE static F min(F a, F b) { return _mm256_min_ps(a, b); }
  TIDEPOOL_INLINE static F round_to_integer(F a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  TIDEPOOL_INLINE static F scale_by_power(F a, F n) {
    // In two steps, because 2^n itself may be out of range where a * 2^n is not (|n| up to 250 is right).
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i first = _mm256_srai_epi32(whole, 1);
    return mul(mul(a, power_of_two(first)), power_of_two(_mm256_sub_epi32(whole, first)));
  }

  TIDEPOOL_INLINE static F bit_and(F a, F b) { return _mm256_and_ps(a, b); }
  TIDEPOOL_INLINE static F bit_or(F a, F b) { return _mm256_or_ps(a, b); }
  TIDEPOOL_INLINE static F bit_xor(F a, F b) { return _mm256_xor_ps(a, b); }
  TIDEPOOL_INLINE static F where_at_least(F a, F b, F then, F otherwise) {
    return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(a, b, _CMP_GE_OQ));
  }
  TIDEPOOL_INLINE static uint32_t greater(F a, F b) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
  }
  template <int kBit>
  TIDEPOOL_INLINE static F round_bits(F a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, kBit), _mm256_set1_epi32(1));
    const __m256i half = _mm256_set1_epi32((1 << (kBit - 1)) - 1);
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, half));
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_set1_epi32((1 << kBit) - 1), rounded));
  }
  TIDEPOOL_INLINE static F round_to_bf16(F a) {
    const F quiet = bit_and(bit_or(a, from_bits(0x00400000U)), from_bits(0xffff0000U));
    return _mm256_blendv_ps(round_bits<16>(a), quiet, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  }

  /// (l, l + 1) within each four lanes, then the two, then the fours.
  TIDEPOOL_INLINE static float sum(F a) {
    F values[kLanes];
    for (F& value : values)
      value = zero();
    values[0] = a;
    return _mm256_cvtss_f32(sums(values));
  }
  TIDEPOOL_INLINE static F sums(const F* v) {
    const F low = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    const F high = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
    return add(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
  }
  TIDEPOOL_INLINE static float largest(F a) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
  }
  TIDEPOOL_INLINE static int32_t largest_bits(F a) {
    const __m256i bits = _mm256_castps_si256(a);
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
  }

  TIDEPOOL_INLINE static F load_twice(const float* from, size_t count) {
    const __m256i twice = _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0);
    return _mm256_permutevar8x32_ps(_mm256_maskload_ps(from, below(count < 4 ? count : 4)), twice);
  }
  TIDEPOOL_INLINE static F swap_pairs(F a) { return _mm256_permute_ps(a, 0xb1); }
  TIDEPOOL_INLINE static F even_signs() {
    return _mm256_castsi256_ps(_mm256_set1_epi64x(static_cast<int64_t>(0x80000000)));
  }

  /// The E2M1 value in the low four bits of each dword; the upper bits do not matter.
  TIDEPOOL_INLINE static F fp4_values(__m256i codes) {
    const __m256 magnitudes = _mm256_set_ps(6.0F, 4.0F, 3.0F, 2.0F, 1.5F, 1.0F, 0.5F, 0.0F);
    const __m256 signs = _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)), from_bits(0x80000000U));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, codes), signs);
  }
  TIDEPOOL_INLINE static F decode_fp4(const std::byte* codes) {
    int eight = 0;
    __builtin_memcpy(&eight, codes, sizeof(eight));
    const __m256i shifts = _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0);
    return fp4_values(_mm256_srlv_epi32(_mm256_set1_epi32(eight), shifts));
  }
  TIDEPOOL_INLINE static F decode_fp8(const std::byte* codes) {
    const __m128i stored = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    const __m128i half = _mm_and_si128(_mm_slli_epi16(stored, 7), _mm_set1_epi16(static_cast<int16_t>(0xbfff)));
    const __m128i magnitude = _mm_set1_epi16(0x7f);
    // All bits set, a NaN of binary16 as well, where the seven bits of magnitude are.
    const __m128i is_nan = _mm_cmpeq_epi16(_mm_and_si128(stored, magnitude), magnitude);
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, is_nan)), _mm256_set1_ps(256.0F));
  }
  /// The same of sixteen codes, into two vectors.
  TIDEPOOL_INLINE static void decode_fp8_pair(const std::byte* codes, F* values) {
    const __m256i stored = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const __m256i half =
        _mm256_and_si256(_mm256_slli_epi16(stored, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
    const __m256i magnitude = _mm256_set1_epi16(0x7f);
    const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(stored, magnitude), magnitude);
    const __m256i halves = _mm256_or_si256(half, is_nan);
    const F factor = all(256.0F);
    values[0] = mul(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), factor);
    values[1] = mul(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), factor);
  }
  struct Nibbles {
    __m256i eight;
  };
  TIDEPOOL_INLINE static Nibbles gather_fp4(const std::byte* const* from, size_t offset) {
    alignas(32) uint32_t eight[kLanes];
    for (size_t l = 0; l < kLanes; ++l)
      __builtin_memcpy(eight + l, from[l] + offset, 4);
    return {_mm256_load_si256(reinterpret_cast<const __m256i*>(eight))};
  }
  template <int kNibble>
  TIDEPOOL_INLINE static F decode_nibble(Nibbles nibbles) {
    return fp4_values(_mm256_srli_epi32(nibbles.eight, 4 * kNibble));
  }

 private:
  TIDEPOOL_INLINE static __m256i below(size_t count) {
    const __m256i lanes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
  }
  TIDEPOOL_INLINE static F power_of_two(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
};

}  // namespace
}  // namespace tidepool::kernels
