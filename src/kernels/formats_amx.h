#pragma once

#include "kernels/exact_bf16_avx512.h"
#include "kernels/tiles_amx.h"

// The formats of weights for tiles_amx.h: a row of each becomes bfloat16 in ascending columns, scale included. A power
// of two moves the exponent only, so this is exact as long as the exponent stays within that of a normal bfloat16
// (subnormal ones count as zero in a product); is_exact tells whether it does for all values of the format.
//
// A Format is made for `steps` steps (at most kGroupSteps) from `first_step` of the outputs of one block, and
// decode(o, out) writes those of output `o`, kStepWords apart.

namespace tidepool::kernels {
namespace {

/// Far enough ahead, per output, that memory answers in time. Past the end of a row it is the row of the next block.
inline constexpr size_t kPrefetchBytes = 512;

TIDEPOOL_INLINE void prefetch_row(const std::byte* row, size_t row_bytes, size_t offset, size_t count) {
  size_t ahead = offset + kPrefetchBytes;
  if (ahead >= row_bytes) ahead += (kBlockOutputs - 1) * row_bytes;
  for (size_t line = 0; line < count; line += 64)
    _mm_prefetch(reinterpret_cast<const char*>(row + ahead + line), _MM_HINT_T0);
}

/// E2M1, two to a byte. The table has the values times 2^125, the largest power that keeps 6 finite; the scale is then
/// taken off the exponent, which is subtracted with saturation: zeros stay zeros, and nothing else gets there.
class Fp4Tile {
 public:
  static constexpr bool kHasScales = true;
  static bool is_exact(const MatrixView& weight, size_t o) {
    const size_t count = weight.in / kStep;
    return are_within(weight.scales + o * count, count, kFp4ScaleMin, kFp4ScaleMax);
  }

  Fp4Tile(const MatrixView& weight, size_t /*first*/, size_t first_step, size_t steps)
      : weight_(weight), first_step_(first_step), steps_(steps) {}

  TIDEPOOL_INLINE void decode(size_t o, uint16_t* out) const {
    const size_t row_bytes = weight_.in / 2;
    const std::byte* row = weight_.data + o * row_bytes;
    prefetch_row(row, row_bytes, first_step_ * kStepBytes, kGroupSteps * kStepBytes);
    alignas(32) uint32_t less[kGroupSteps];
    exponents(weight_.scales + o * (weight_.in / kStep) + first_step_, less);
    // From memory a broadcast costs a load; taken from the register it would cost two of the shuffles that the rest of
    // the loop is short of.
    asm volatile("" : "+m"(less));
    const __m512i values = _mm512_load_si512(kFp4Values.value);
    for (size_t s = 0; s < steps_; ++s) {
      const auto* bytes = reinterpret_cast<const __m128i*>(row + (first_step_ + s) * kStepBytes);
      // Byte hi:lo as a dword is 00'00'00'hi:lo; with itself 12 bits higher its words have lo and hi in their lowest
      // four bits. The permutation looks at five, hence a table of twice 16.
      const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes));
      const __m512i nibbles = _mm512_or_si512(byte, _mm512_slli_epi32(byte, 12));
      const __m512i value = _mm512_permutexvar_epi16(nibbles, values);
      _mm512_store_si512(out + s * kStepWords, _mm512_subs_epu16(value, _mm512_set1_epi32(static_cast<int>(less[s]))));
    }
  }

 private:
  static constexpr size_t kStepBytes = 16;

  /// What each step's scale takes off the table's, in both words of a dword.
  TIDEPOOL_INLINE void exponents(const uint8_t* scales, uint32_t (&less)[kGroupSteps]) const {
    const auto present = static_cast<__mmask16>((1U << steps_) - 1U);
    const __m256i codes = _mm256_cvtepu8_epi32(_mm_maskz_loadu_epi8(present, scales));
    const __m256i word = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(kFp4ScaleMax), codes), 7);
    const __m256i low = _mm256_and_si256(word, _mm256_set1_epi32(0xffff));
    _mm256_store_si256(reinterpret_cast<__m256i*>(less), _mm256_or_si256(low, _mm256_slli_epi32(word, 16)));
  }

  const MatrixView& weight_;
  size_t first_step_;
  size_t steps_;
};

/// E4M3. Its exponent and mantissa, moved to their places in a bfloat16, want 120 added to the exponent; subnormal
/// codes and zero, which have no exponent of their own, are looked up. The scale, one for the whole block, is part of
/// what is added.
class Fp8Tile {
 public:
  static constexpr bool kHasScales = true;
  static bool is_exact(const MatrixView& weight, size_t o) {
    const size_t count = (weight.in + kStep - 1) / kStep;
    return are_within(weight.scales + o / kStep * count, count, kFp8ScaleMin, kFp8ScaleMax);
  }

  Fp8Tile(const MatrixView& weight, size_t first, size_t first_step, size_t steps)
      : weight_(weight), first_step_(first_step), steps_(steps) {
    const size_t count = (weight.in + kStep - 1) / kStep;
    const uint8_t* scales = weight.scales + first / kStep * count + first_step;
    const __m512i subnormals = _mm512_load_si512(kSubnormals.value);
    const __mmask32 nonzero = 0xfefefefeU;
    for (size_t s = 0; s < steps; ++s) {
      const __m512i power = _mm512_set1_epi16(static_cast<int16_t>((scales[s] - 127) * 128));
      normal_[s] = _mm512_add_epi16(power, _mm512_set1_epi16(120 * 128));
      subnormal_[s] = _mm512_mask_add_epi16(subnormals, nonzero, subnormals, power);
    }
  }

  TIDEPOOL_INLINE void decode(size_t o, uint16_t* out) const {
    const std::byte* row = weight_.data + o * weight_.in;
    prefetch_row(row, weight_.in, first_step_ * kStep, kGroupSteps * kStep);
    for (size_t s = 0; s < steps_; ++s) {
      const size_t begin = (first_step_ + s) * kStep;
      const size_t columns = smaller(kStep, weight_.in - begin);
      const __mmask32 present = columns == kStep ? ~0U : (1U << columns) - 1U;
      const __m512i code = _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(present, row + begin));
      // The sign was spread over the upper byte: after the shift one of its bits is where it belongs.
      const __m512i moved =
          _mm512_and_si512(_mm512_slli_epi16(code, 4), _mm512_set1_epi16(static_cast<int16_t>(0x87f0)));
      const __mmask32 has_no_exponent = _mm512_testn_epi16_mask(code, _mm512_set1_epi16(0x78));
      const __m512i more = _mm512_mask_permutexvar_epi16(normal_[s], has_no_exponent, code, subnormal_[s]);
      const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi16(0x7f));
      const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f));
      const __m512i value = _mm512_mask_mov_epi16(_mm512_add_epi16(moved, more), is_nan, _mm512_set1_epi16(0x7fc0));
      _mm512_store_si512(out + s * kStepWords, value);
    }
  }

 private:
  /// What turns mantissa m, at its place in a bfloat16, into m * 2^-9. Indexed by the lowest five bits of the code, of
  /// which the upper two are zero here.
  static constexpr Words32 make_subnormals() {
    Words32 table{};
    for (unsigned i = 0; i < 32; ++i) {
      unsigned mantissa = i % 8;
      if (mantissa == 0) continue;
      // Move the leading one to bit 3; each step halves the power. 121 is the exponent of 2^-6.
      unsigned exponent = 121;
      while (mantissa < 8) {
        mantissa <<= 1U;
        --exponent;
      }
      const unsigned bits = (exponent << 7U) | ((mantissa & 7U) << 4U);
      table.value[i] = static_cast<uint16_t>(bits - (i % 8 << 4U));
    }
    return table;
  }
  static const Words32 kSubnormals;

  const MatrixView& weight_;
  size_t first_step_;
  size_t steps_;
  __m512i normal_[kGroupSteps];
  __m512i subnormal_[kGroupSteps];
};
constexpr Words32 Fp8Tile::kSubnormals = Fp8Tile::make_subnormals();

/// bfloat16 as it is. (Loading tiles straight from the matrix would save a copy in the first-level cache, and have its
/// 16 rows, a power of two apart, fall into one set of it.)
class Bf16Tile {
 public:
  static constexpr bool kHasScales = false;

  Bf16Tile(const MatrixView& weight, size_t /*first*/, size_t first_step, size_t steps)
      : weight_(weight), first_step_(first_step), steps_(steps) {}

  TIDEPOOL_INLINE void decode(size_t o, uint16_t* out) const {
    const size_t row_bytes = weight_.in * sizeof(uint16_t);
    const std::byte* row = weight_.data + o * row_bytes;
    prefetch_row(row, row_bytes, first_step_ * kTileRowBytes, kGroupSteps * kTileRowBytes);
    for (size_t s = 0; s < steps_; ++s) {
      const size_t begin = (first_step_ + s) * kStep;
      const size_t columns = smaller(kStep, weight_.in - begin);
      const __mmask32 present = columns == kStep ? ~0U : (1U << columns) - 1U;
      _mm512_store_si512(out + s * kStepWords, _mm512_maskz_loadu_epi16(present, row + begin * sizeof(uint16_t)));
    }
  }

 private:
  const MatrixView& weight_;
  size_t first_step_;
  size_t steps_;
};

}  // namespace
}  // namespace tidepool::kernels
