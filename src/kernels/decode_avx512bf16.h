#pragma once

#include "kernels/exact_bf16_avx512.h"
#include "kernels/kernel_table.h"
#include "kernels/vec_avx512.h"
// After the Vec it is written in.
#include "kernels/math_vector.h"

// FP4 and FP8 codes as vectors of bfloat16 with their scales multiplied in: a power of two moves the exponent only,
// which is exact as long as it stays that of a normal bfloat16 (subnormal ones count as zero in VDPBF16PS).

namespace tidepool::kernels {
namespace {

struct alignas(64) Bytes64 {
  uint8_t value[64];
};

/// 32 values that are exact in bfloat16, as such: the upper halves, in order.
TIDEPOOL_INLINE __m512i narrowed(const float* x) {
  alignas(64) static constexpr struct {
    uint16_t word[32];
  } kUpper = {{1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
               33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63}};
  return _mm512_permutex2var_epi16(_mm512_loadu_si512(x), _mm512_load_si512(kUpper.word), _mm512_loadu_si512(x + 16));
}

/// The bfloat16 of an E4M3 magnitude times 2^-117: the smallest, 2^-9, then has the exponent of 2^-126. NaN is 0x7fff.
constexpr unsigned e4m3_bits(unsigned code) {
  if (code == 0) return 0;
  if (code == 0x7f) return 0x7fff;
  unsigned exponent = (code >> 3) + 120;
  unsigned mantissa = code & 7U;
  if (code < 8) {
    // mantissa * 2^-9: move the leading one to bit 3; each step halves the power. 121 is the exponent of 2^-6.
    exponent = 121;
    for (; mantissa < 8; mantissa <<= 1U)
      --exponent;
  }
  return ((exponent - 117) << 7) | ((mantissa & 7U) << 4);
}

/// The upper (`part` 1) or lower (0) byte of the bfloat16 of each magnitude 64 * half + i.
constexpr Bytes64 e4m3_bytes(unsigned half, unsigned part) {
  Bytes64 table{};
  for (unsigned i = 0; i < 64; ++i)
    table.value[i] = static_cast<uint8_t>(e4m3_bits(64 * half + i) >> 8 * part);
  return table;
}
inline constexpr Bytes64 kE4m3Low0 = e4m3_bytes(0, 0);
inline constexpr Bytes64 kE4m3Low1 = e4m3_bytes(1, 0);
inline constexpr Bytes64 kE4m3High0 = e4m3_bytes(0, 1);
inline constexpr Bytes64 kE4m3High1 = e4m3_bytes(1, 1);

/// 64 E4M3 codes: the first vector has columns 0 to 7 of each 16, the second the others. A lookup gives the two bytes
/// of each bfloat16; `more`, the scale's power above 2^-117 at its place, is added to all but zeros, with saturation: a
/// NaN, having the largest pattern, stays one.
TIDEPOOL_INLINE void decode_fp8_half(const std::byte* codes, __m512i more, __m512i* out) {
  const auto table = [](const Bytes64& bytes) { return _mm512_load_si512(bytes.value); };
  const __m512i code = _mm512_loadu_si512(codes);
  const __m512i low = _mm512_permutex2var_epi8(table(kE4m3Low0), code, table(kE4m3Low1));
  const __m512i high = _mm512_permutex2var_epi8(table(kE4m3High0), code, table(kE4m3High1));
  const __m512i magnitude[2] = {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
  const __m512i sign[2] = {_mm512_unpacklo_epi8(code, code), _mm512_unpackhi_epi8(code, code)};
  for (size_t i = 0; i < 2; ++i) {
    const __mmask32 is_nonzero = _mm512_test_epi16_mask(magnitude[i], magnitude[i]);
    const __m512i scaled = _mm512_mask_adds_epi16(magnitude[i], is_nonzero, magnitude[i], more);
    // 0xf8: scaled | (sign & 0x8000).
    out[i] = _mm512_ternarylogic_epi32(scaled, sign[i], _mm512_set1_epi16(static_cast<int16_t>(0x8000)), 0xf8);
  }
}

/// The bfloat16 of magnitudes 64 * half + i with bit 3 of i as `upper` says, 32 of them in order: what packs to the
/// bytes of all 64.
constexpr Words32 e4m3_words(unsigned half, unsigned upper) {
  Words32 table{};
  for (unsigned i = 0; i < 32; ++i)
    table.value[i] = static_cast<uint16_t>(e4m3_bits(64 * half + i / 8 * 16 + 8 * upper + i % 8));
  return table;
}
inline constexpr Words32 kE4m3Words[2][2] = {{e4m3_words(0, 0), e4m3_words(0, 1)},
                                             {e4m3_words(1, 0), e4m3_words(1, 1)}};

/// The bytes of all E4M3 magnitudes' bfloat16 with one scale multiplied in: for weights of which many have that scale,
/// five instructions for 64 of them where decode_fp8_half takes twelve.
struct ScaledFp8 {
  __m512i low[2];
  __m512i high[2];

  TIDEPOOL_INLINE explicit ScaledFp8(uint8_t scale) {
    const __m512i more = _mm512_set1_epi16(static_cast<int16_t>((scale - kFp8ScaleMin) * (1 << 7)));
    for (size_t half = 0; half < 2; ++half) {
      __m512i words[2];
      for (size_t upper = 0; upper < 2; ++upper) {
        const __m512i unscaled = _mm512_load_si512(kE4m3Words[half][upper].value);
        // The first of all is zero, and stays so.
        const __mmask32 is_nonzero = half == 0 && upper == 0 ? 0xfffffffeU : 0xffffffffU;
        words[upper] = _mm512_mask_adds_epi16(unscaled, is_nonzero, unscaled, more);
      }
      const __m512i byte = _mm512_set1_epi16(0xff);
      low[half] = _mm512_packus_epi16(_mm512_and_si512(words[0], byte), _mm512_and_si512(words[1], byte));
      high[half] = _mm512_packus_epi16(_mm512_srli_epi16(words[0], 8), _mm512_srli_epi16(words[1], 8));
    }
  }

  /// 64 codes, dealt out as by decode_fp8_half.
  TIDEPOOL_INLINE void decode(__m512i code, __m512i* out) const {
    const __m512i lower = _mm512_permutex2var_epi8(low[0], code, low[1]);
    const __m512i magnitude = _mm512_permutex2var_epi8(high[0], code, high[1]);
    // 0xf8: magnitude | (code & 0x80).
    const __m512i upper = _mm512_ternarylogic_epi32(magnitude, code, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);
    out[0] = _mm512_unpacklo_epi8(lower, upper);
    out[1] = _mm512_unpackhi_epi8(lower, upper);
  }
};

}  // namespace
}  // namespace tidepool::kernels
