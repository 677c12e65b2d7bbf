#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

// When a code of FP4 or FP8 times its scale is a bfloat16 exactly: for the tiles and for the pairs of bfloat16 alike.

namespace tidepool::kernels {
namespace {

/// Scales of E2M1 for which all is exact: 0.5 * 2^(2 - 127) is 2^-126; 6 * 2^(252 - 127) is below 2^128.
inline constexpr uint8_t kFp4ScaleMin = 2;
inline constexpr uint8_t kFp4ScaleMax = 252;
/// Those of E4M3: 2^-9 * 2^(10 - 127) is 2^-126; 448 * 2^(246 - 127) is below 2^128.
inline constexpr uint8_t kFp8ScaleMin = 10;
inline constexpr uint8_t kFp8ScaleMax = 246;

/// A vector of 16-bit words, as a table in memory.
struct alignas(64) Words32 {
  uint16_t value[32];
};

/// The 16 values of E2M1 as bfloat16 times 2^125, the largest power that keeps 6 finite. The scale is then taken off
/// the exponent, which is subtracted with saturation: zeros stay zeros (-0 is stored as +0 for that), and nothing else
/// gets there. Twice, because a permutation of words looks at five bits.
constexpr Words32 fp4_values() {
  // Of 0, 0.5, 1, 1.5, 2, 3, 4, 6.
  constexpr uint16_t kMagnitudes[8] = {0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0};
  Words32 table{};
  for (size_t i = 0; i < 32; ++i) {
    const uint16_t magnitude = kMagnitudes[i % 8];
    const unsigned sign = i % 16 >= 8 ? 0x8000U : 0U;
    const unsigned raised = magnitude + (static_cast<unsigned>(kFp4ScaleMax - 127) << 7U);
    table.value[i] = static_cast<uint16_t>(magnitude == 0 ? 0U : sign | raised);
  }
  return table;
}
inline constexpr Words32 kFp4Values = fp4_values();

/// Whether all `count` codes are within [low, high].
inline bool are_within(const uint8_t* codes, size_t count, uint8_t low, uint8_t high) {
  const __m512i least = _mm512_set1_epi8(static_cast<char>(low));
  const __m512i span = _mm512_set1_epi8(static_cast<char>(high - low));
  __mmask64 outside = 0;
  for (size_t i = 0; i < count; i += 64) {
    const __mmask64 present = count - i >= 64 ? ~__mmask64{0} : (__mmask64{1} << (count - i)) - 1;
    const __m512i code = _mm512_maskz_loadu_epi8(present, codes + i);
    outside |= _mm512_mask_cmpgt_epu8_mask(present, _mm512_sub_epi8(code, least), span);
  }
  return outside == 0;
}

}  // namespace
}  // namespace tidepool::kernels
