#include "kernels/decode_avx512bf16.h"
#include "kernels/products_avx512bf16.h"

// The formats of weights for VDPBF16PS. A group of 128 columns becomes four vectors of bfloat16 with the scales
// multiplied in; is_exact tells whether that is exact for all values of the format. For strips (many_rows_avx512bf16.h)
// decode_turned gives the vectors of 16 outputs turned: to store(chain, v, vector) dword `chain` of each one's vector
// v. Codes are turned before they are decoded where that is less to turn.

namespace tidepool::kernels {
namespace {

/// The four E8M0 codes of a group in every lane of 128 bits.
TIDEPOOL_INLINE __m512i load_scales(const uint8_t* codes) {
  int four = 0;
  __builtin_memcpy(&four, codes, sizeof(four));
  return _mm512_set1_epi32(four);
}

/// E2M1, two to a byte. Word i of the 64 bytes holds columns 4i to 4i + 3, so vector n is nibble n of every word, and
/// lane l (dword l, two words) is in 32-column block l / 4. The table has the values times 2^125, the largest power
/// that keeps 6 finite; the scale is then taken off the exponent, which is subtracted with saturation: zeros stay
/// zeros, and nothing else gets there.
struct Fp4 {
  static constexpr bool kHasScales = true;
  static constexpr size_t kGroupBytes = 64;
  static size_t row_bytes(size_t in) { return in / 2; }
  static const uint8_t* row_scales(const MatrixView& weight, size_t o) {
    return weight.scales + o * (weight.in / kBlock);
  }
  static bool is_exact(const MatrixView& weight, size_t o) {
    return are_within(row_scales(weight, o), weight.in / kBlock, kFp4ScaleMin, kFp4ScaleMax);
  }

  /// What each scale takes off the table's exponent, in the words of its lanes.
  TIDEPOOL_INLINE static __m512i exponents(const uint8_t* scales) {
    constexpr int kZero = 0x80;
    const __m512i spread = _mm512_set_epi32(
        kZero << 24 | 3 << 16 | kZero << 8 | 3, kZero << 24 | 3 << 16 | kZero << 8 | 3,
        kZero << 24 | 3 << 16 | kZero << 8 | 3, kZero << 24 | 3 << 16 | kZero << 8 | 3,
        kZero << 24 | 2 << 16 | kZero << 8 | 2, kZero << 24 | 2 << 16 | kZero << 8 | 2,
        kZero << 24 | 2 << 16 | kZero << 8 | 2, kZero << 24 | 2 << 16 | kZero << 8 | 2,
        kZero << 24 | 1 << 16 | kZero << 8 | 1, kZero << 24 | 1 << 16 | kZero << 8 | 1,
        kZero << 24 | 1 << 16 | kZero << 8 | 1, kZero << 24 | 1 << 16 | kZero << 8 | 1, kZero << 24 | kZero << 8,
        kZero << 24 | kZero << 8, kZero << 24 | kZero << 8, kZero << 24 | kZero << 8);
    const __m512i code = _mm512_shuffle_epi8(load_scales(scales), spread);
    return _mm512_sub_epi16(_mm512_set1_epi16(static_cast<int16_t>(kFp4ScaleMax << 7)), _mm512_slli_epi16(code, 7));
  }

  TIDEPOOL_INLINE static Group decode(const std::byte* codes, const uint8_t* scales) {
    const __m512i less = exponents(scales);
    const __m512i values = _mm512_load_si512(kFp4Values.value);
    const __m512i nibbles = _mm512_loadu_si512(codes);
    const auto value = [&](__m512i index) { return _mm512_subs_epu16(_mm512_permutexvar_epi16(index, values), less); };
    return {{value(nibbles), value(_mm512_srli_epi16(nibbles, 4)), value(_mm512_srli_epi16(nibbles, 8)),
             value(_mm512_srli_epi16(nibbles, 12))}};
  }

  TIDEPOOL_INLINE static void decode_turned(const PanelGroup& panel, const TurnedPanel& to) {
    const __m512i values = _mm512_load_si512(kFp4Values.value);
    __m512i codes[Vec::kLanes];
    alignas(64) uint32_t scales[Vec::kLanes];
    for (size_t o = 0; o < Vec::kLanes; ++o) {
      codes[o] = _mm512_loadu_si512(panel.codes[o]);
      __builtin_memcpy(&scales[o], panel.scales[o], sizeof(scales[o]));
    }
    // What each output's scale of each block takes off the table's exponent, in both its words.
    __m512i less[kGroupBlocks];
    for (size_t b = 0; b < kGroupBlocks; ++b) {
      const int byte = static_cast<int>(0x80008000U | b << 16 | b);
      const __m512i spread = _mm512_set4_epi32(byte + 0x0c000c, byte + 0x080008, byte + 0x040004, byte);
      const __m512i code = _mm512_shuffle_epi8(_mm512_load_si512(scales), spread);
      less[b] =
          _mm512_sub_epi16(_mm512_set1_epi16(static_cast<int16_t>(kFp4ScaleMax << 7)), _mm512_slli_epi16(code, 7));
    }
    turn(
        codes, [&](size_t chain, __m512i nibbles) __attribute__((always_inline)) {
          const auto value = [&](__m512i index) {
            return _mm512_subs_epu16(_mm512_permutexvar_epi16(index, values), less[chain / 4]);
          };
          to.store(chain, 0, value(nibbles));
          to.store(chain, 1, value(_mm512_srli_epi16(nibbles, 4)));
          to.store(chain, 2, value(_mm512_srli_epi16(nibbles, 8)));
          to.store(chain, 3, value(_mm512_srli_epi16(nibbles, 12)));
        });
  }

  /// Dword l of vector n: columns 8l + n and 8l + 4 + n.
  TIDEPOOL_INLINE static Group pack(const float* x) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
    __m512i pairs[4];  // quarter j of pairs[i]: lane 4i + j of vectors 0 to 3
    for (size_t i = 0; i < 4; ++i) {
      const __m512i first = _mm512_loadu_si512(x + 32 * i);
      const __m512i second = _mm512_loadu_si512(x + 32 * i + 16);
      const __m512i even = _mm512_shuffle_i64x2(first, second, 0x88);
      const __m512i odd = _mm512_shuffle_i64x2(first, second, 0xdd);
      // 0xe4: where `upper`, odd, else even.
      pairs[i] = _mm512_ternarylogic_epi32(odd, _mm512_srli_epi32(even, 16), upper, 0xe4);
    }
    const __m512i low01 = _mm512_unpacklo_epi32(pairs[0], pairs[1]);
    const __m512i high01 = _mm512_unpackhi_epi32(pairs[0], pairs[1]);
    const __m512i low23 = _mm512_unpacklo_epi32(pairs[2], pairs[3]);
    const __m512i high23 = _mm512_unpackhi_epi32(pairs[2], pairs[3]);
    const __m512i turn = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return {{_mm512_permutexvar_epi32(turn, _mm512_unpacklo_epi64(low01, low23)),
             _mm512_permutexvar_epi32(turn, _mm512_unpackhi_epi64(low01, low23)),
             _mm512_permutexvar_epi32(turn, _mm512_unpacklo_epi64(high01, high23)),
             _mm512_permutexvar_epi32(turn, _mm512_unpackhi_epi64(high01, high23))}};
  }
};

/// E4M3, 64 columns to two vectors, as decode_fp8_half deals them out.
struct Fp8 {
  static constexpr bool kHasScales = true;
  static constexpr size_t kGroupBytes = 128;
  static size_t row_bytes(size_t in) { return in; }
  static const uint8_t* row_scales(const MatrixView& weight, size_t o) {
    return weight.scales + o / kBlock * ((weight.in + kBlock - 1) / kBlock);
  }
  static bool is_exact(const MatrixView& weight, size_t o) {
    return are_within(row_scales(weight, o), (weight.in + kBlock - 1) / kBlock, kFp8ScaleMin, kFp8ScaleMax);
  }

  TIDEPOOL_INLINE static Group decode(const std::byte* codes, const uint8_t* scales) {
    const __m512i four = load_scales(scales);
    // Byte `b` of the four in every word of the lower, b + 1 of the upper 256 bits.
    const auto spread = [](int b) {
      const int low = static_cast<int>(0x80008000U) | b << 16 | b;
      const int high = low + 0x00010001;
      return _mm512_set_epi32(high, high, high, high, high, high, high, high, low, low, low, low, low, low, low, low);
    };
    const __m512i bias = _mm512_set1_epi16(static_cast<int16_t>(kFp8ScaleMin << 7));
    const auto more = [&](int b) {
      return _mm512_sub_epi16(_mm512_slli_epi16(_mm512_shuffle_epi8(four, spread(b)), 7), bias);
    };
    Group group;
    decode_fp8_half(codes, more(0), group.vector);
    decode_fp8_half(codes + 64, more(2), group.vector + 2);
    return group;
  }

  /// All 16 outputs have the scales of the first.
  TIDEPOOL_INLINE static void decode_turned(const PanelGroup& panel, const TurnedPanel& to) {
    for (size_t half = 0; half < 2; ++half) {
      const uint8_t* scales = panel.scales[0] + 2 * half;
      const ScaledFp8 scaled[2] = {ScaledFp8(scales[0]), ScaledFp8(scales[1])};
      __m512i fours[4][4];
      for (size_t i = 0; i < 4; ++i) {
        __m512i codes[4];
        for (size_t o = 0; o < 4; ++o)
          codes[o] = _mm512_loadu_si512(panel.codes[4 * i + o] + 64 * half);
        turn_words(codes, fours[i]);
      }
      for (size_t j = 0; j < 4; ++j) {
        __m512i turned[4];
        turn_quarters(fours[0][j], fours[1][j], fours[2][j], fours[3][j], turned);
        for (size_t q = 0; q < 4; ++q) {
          const size_t chain = 4 * q + 2 * (j % 2);
          __m512i pairs[2];
          scaled[q / 2].decode(turned[q], pairs);
          to.store(chain, 2 * half + j / 2, pairs[0]);
          to.store(chain + 1, 2 * half + j / 2, pairs[1]);
        }
      }
    }
  }

  TIDEPOOL_INLINE static Group pack(const float* x) {
    const __m512i first[2] = {narrowed(x), narrowed(x + 32)};
    const __m512i second[2] = {narrowed(x + 64), narrowed(x + 96)};
    return {{_mm512_shuffle_i64x2(first[0], first[1], 0x88), _mm512_shuffle_i64x2(first[0], first[1], 0xdd),
             _mm512_shuffle_i64x2(second[0], second[1], 0x88), _mm512_shuffle_i64x2(second[0], second[1], 0xdd)}};
  }
};

/// bfloat16 as it is.
struct Bfloat16 {
  static constexpr bool kHasScales = false;
  static constexpr size_t kGroupBytes = 256;
  static size_t row_bytes(size_t in) { return 2 * in; }
  static const uint8_t* row_scales(const MatrixView& /*weight*/, size_t /*o*/) { return nullptr; }

  TIDEPOOL_INLINE static Group decode(const std::byte* codes, const uint8_t* /*scales*/) {
    return {{_mm512_loadu_si512(codes), _mm512_loadu_si512(codes + 64), _mm512_loadu_si512(codes + 128),
             _mm512_loadu_si512(codes + 192)}};
  }
  TIDEPOOL_INLINE static void decode_turned(const PanelGroup& panel, const TurnedPanel& to) {
    for (size_t v = 0; v < kGroupVectors; ++v) {
      __m512i vectors[Vec::kLanes];
      for (size_t o = 0; o < Vec::kLanes; ++o)
        vectors[o] = _mm512_loadu_si512(panel.codes[o] + 64 * v);
      turn(
          vectors, [&](size_t chain, __m512i pairs) __attribute__((always_inline)) { to.store(chain, v, pairs); });
    }
  }
  TIDEPOOL_INLINE static Group pack(const float* x) {
    return {{narrowed(x), narrowed(x + 32), narrowed(x + 64), narrowed(x + 96)}};
  }
};

}  // namespace

namespace avx512bf16 {

void linear_fp8(const LinearArgs& args) noexcept {
  linear_rows<Fp8>(args, avx512::linear_fp8);
}
void linear_fp4(const LinearArgs& args) noexcept {
  linear_rows<Fp4>(args, avx512::linear_fp4);
}
void linear_bf16(const LinearArgs& args) noexcept {
  linear_rows<Bfloat16>(args, avx512::linear_bf16);
}

size_t packed_bytes(MatrixFormat format, size_t rows, size_t in) noexcept {
  // With fewer rows a task is done before another thread could have packed for it.
  constexpr size_t kPackedRows = 16;
  if (format == MatrixFormat::kFloat32 || rows < kPackedRows || in == 0) return 0;
  const size_t chain_pairs = (in + kGroup - 1) / kGroup * kGroupVectors;
  return strip_vectors(chain_pairs) == 0 ? 0 : rows * kChains * chain_pairs * sizeof(uint32_t);
}
void pack_inputs(const PackArgs& args) noexcept {
  switch (args.format) {
    case MatrixFormat::kFp8Tile32: return pack_inputs_as<Fp8>(args);
    case MatrixFormat::kFp4Block32: return pack_inputs_as<Fp4>(args);
    case MatrixFormat::kBf16: return pack_inputs_as<Bfloat16>(args);
    case MatrixFormat::kFloat32: return;  // packed_bytes says 0
  }
}

}  // namespace avx512bf16
}  // namespace tidepool::kernels
