#include "kernels/kernel_table_internal.h"
#include "kernels/vec_avx512.h"
// After the Vec it is written in.
#include "kernels/linear_vector.h"

// The formats of weights for AVX-512 (F, BW, VL, DQ): groups of 128 columns as eight vectors, lane l of each of
// them in 32-column block l / 4.

namespace tidepool::kernels {
namespace {

struct alignas(64) Bytes64 {
  uint8_t value[64];
};
struct alignas(64) Indices {
  int32_t value[128];
};

template <typename Format>
constexpr Indices group_columns() {
  Indices result{};
  for (size_t v = 0; v < Format::kVectors; ++v) {
    for (size_t l = 0; l < kLanes; ++l)
      result.value[v * kLanes + l] = static_cast<int32_t>(Format::column(v, l));
  }
  return result;
}

/// Format::pack by way of Format::column.
template <typename Format>
void pack_gathered(const float* x, float* packed) {
  static constexpr Indices kColumns = group_columns<Format>();
  for (size_t i = 0; i < Format::kGroup; i += kLanes) {
    Vec::store(packed + i, _mm512_i32gather_ps(_mm512_load_si512(kColumns.value + i), x, 4));
  }
}

/// The four E8M0 codes as the group's vector of scales: code l in lanes 4l to 4l + 3, as 2^(code - 127).
TIDEPOOL_INLINE __m512 expand_scales(const uint8_t* codes) {
  int four = 0;
  __builtin_memcpy(&four, codes, sizeof(four));
  const __m512i spread = _mm512_set_epi32(-253, -253, -253, -253, -254, -254, -254, -254, -255, -255, -255, -255, -256,
                                          -256, -256, -256);  // byte l of the lane, then three zeros
  const __m512i code = _mm512_shuffle_epi8(_mm512_set1_epi32(four), spread);
  const __m512 power = _mm512_castsi512_ps(_mm512_slli_epi32(code, 23));
  // The shift is right but at the ends: code 0 is the subnormal 2^-127, not 0, and 255 is NaN, not infinity.
  // Responses by class, 4 bits each from the lowest: QNaN, SNaN, zero, one, -inf, +inf, negative, positive;
  // 0 keeps the first operand, 1 takes the second, 3 is NaN.
  const __m512 tiny = _mm512_castsi512_ps(_mm512_set1_epi32(0x00400000));
  return _mm512_fixupimm_ps(tiny, power, _mm512_set1_epi32(0x11311011), 0);
}

/// E2M1, two to a byte. Dword i of the 64 bytes holds columns 8i to 8i + 7, so vector n is nibble n of every dword,
/// looked up by a permutation of the 16 values, which sees the low four bits of each index only. Loads from one, two
/// and three bytes further on bring down the even nibbles; of the odd ones only four need a shift. (What bounds this
/// format on one core is its arithmetic: two instructions a cycle, 24.5 for 64 bytes, where seven shifts made 27.)
struct Fp4 {
  static constexpr bool kHasScales = true;
  static constexpr size_t kGroupBytes = 64;
  static constexpr size_t kBytesAfterGroup = 3;
  static constexpr size_t kGroup = 128;
  static constexpr size_t kVectors = 8;
  static constexpr size_t kGroupBlocks = 4;
  static constexpr size_t column(size_t vector, size_t lane) { return 8 * lane + vector; }
  static void pack(const float* x, float* packed) { pack_gathered<Fp4>(x, packed); }
  static size_t row_bytes(size_t in) { return in / 2; }
  static const uint8_t* row_scales(const MatrixView& weight, size_t o) {
    return weight.scales + o * (weight.in / kBlock);
  }
  TIDEPOOL_INLINE static __m512 scales(const uint8_t* codes) { return expand_scales(codes); }

  struct Raw {
    __m512i pairs[4];
  };
  TIDEPOOL_INLINE static Raw load(const std::byte* codes) {
    return {{_mm512_loadu_si512(codes), _mm512_loadu_si512(codes + 1), _mm512_loadu_si512(codes + 2),
             _mm512_loadu_si512(codes + 3)}};
  }
  template <size_t kVector>
  TIDEPOOL_INLINE static __m512 vector(const Raw& raw) {
    const __m512 values = _mm512_set_ps(-6.0F, -4.0F, -3.0F, -2.0F, -1.5F, -1.0F, -0.5F, -0.0F, 6.0F, 4.0F, 3.0F, 2.0F,
                                        1.5F, 1.0F, 0.5F, 0.0F);
    const __m512i pairs = raw.pairs[kVector / 2];
    return _mm512_permutexvar_ps(kVector % 2 == 0 ? pairs : _mm512_srli_epi32(pairs, 4), values);
  }
};

/// For each 16-byte quarter, the upper (`part` 1) or lower (0) byte of the bfloat16 of the E4M3 subnormals m * 2^-9.
/// Exact, as are the normal values: three bits of mantissa fit.
constexpr Bytes64 subnormal_bytes(unsigned part) {
  Bytes64 table{};
  for (unsigned i = 0; i < 64; ++i) {
    // Move the leading one to bit 3; each step halves the power. 121 is the exponent of 2^-6.
    unsigned mantissa = i % 8;
    unsigned exponent = 121;
    while (mantissa != 0 && mantissa < 8) {
      mantissa <<= 1U;
      --exponent;
    }
    const unsigned bits = mantissa == 0 ? 0 : (exponent << 7) | ((mantissa & 7U) << 4);
    table.value[i] = static_cast<uint8_t>(part == 1 ? bits >> 8 : bits & 0xffU);
  }
  return table;
}
constexpr Bytes64 kSubnormalLow = subnormal_bytes(0);
constexpr Bytes64 kSubnormalHigh = subnormal_bytes(1);

TIDEPOOL_INLINE __m512i load_table(const Bytes64& table) {
  return _mm512_load_si512(table.value);
}

/// A group as bfloat16, each dword two of them. Vector v is the even (v even) or odd ones of pairs[v / 2].
struct Bf16Pairs {
  __m512i pairs[4];
};
template <size_t kVector>
TIDEPOOL_INLINE __m512 bf16_vector(const Bf16Pairs& raw) {
  const __m512i pairs = raw.pairs[kVector / 2];
  return _mm512_castsi512_ps(kVector % 2 == 0
                                 ? _mm512_slli_epi32(pairs, 16)
                                 : _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
}

/// E4M3. Its exponent and mantissa, moved to those of a bfloat16, make two bytes; interleaved they are words, and a
/// bfloat16 is the upper half of the binary32. Subnormals are looked up. Before that the 16-byte quarters are dealt out
/// so that quarter l belongs to block l. Without VBMI, which processors of the first two generations lack.
struct Fp8 {
  static constexpr bool kHasScales = true;
  static constexpr size_t kGroupBytes = 128;
  static constexpr size_t kBytesAfterGroup = 0;
  static constexpr size_t kGroup = 128;
  static constexpr size_t kVectors = 8;
  static constexpr size_t kGroupBlocks = 4;
  static constexpr size_t column(size_t vector, size_t lane) {
    return 32 * (lane / 4) + 8 * (vector / 2) + 2 * (lane % 4) + vector % 2;
  }
  static void pack(const float* x, float* packed) { pack_gathered<Fp8>(x, packed); }
  static size_t row_bytes(size_t in) { return in; }
  static const uint8_t* row_scales(const MatrixView& weight, size_t o) {
    return weight.scales + o / kBlock * ((weight.in + kBlock - 1) / kBlock);
  }
  TIDEPOOL_INLINE static __m512 scales(const uint8_t* codes) { return expand_scales(codes); }

  TIDEPOOL_INLINE static void decode(__m512i codes, __m512i* pairs) {
    const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
    // Of ((exponent + 120) << 7) | (mantissa << 4): words are shifted, and what crosses into a byte is masked off.
    __m512i low = _mm512_and_si512(_mm512_slli_epi16(codes, 4), _mm512_set1_epi8(static_cast<char>(0xf0)));
    __m512i high = _mm512_and_si512(_mm512_srli_epi16(magnitude, 4), _mm512_set1_epi8(0x0f));
    high = _mm512_add_epi8(high, _mm512_set1_epi8(60));
    const __mmask64 is_subnormal = _mm512_cmplt_epu8_mask(magnitude, _mm512_set1_epi8(8));
    low = _mm512_mask_shuffle_epi8(low, is_subnormal, load_table(kSubnormalLow), magnitude);
    high = _mm512_mask_shuffle_epi8(high, is_subnormal, load_table(kSubnormalHigh), magnitude);
    const __mmask64 is_nan = _mm512_cmpeq_epi8_mask(magnitude, _mm512_set1_epi8(0x7f));
    low = _mm512_mask_mov_epi8(low, is_nan, _mm512_set1_epi8(static_cast<char>(0xc0)));
    high = _mm512_mask_mov_epi8(high, is_nan, _mm512_set1_epi8(0x7f));
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    // 0xf8: high | (codes & sign).
    high = _mm512_ternarylogic_epi64(high, codes, sign, 0xf8);
    pairs[0] = _mm512_unpacklo_epi8(low, high);
    pairs[1] = _mm512_unpackhi_epi8(low, high);
  }

  using Raw = Bf16Pairs;
  TIDEPOOL_INLINE static Raw load(const std::byte* codes) {
    const __m512i first = _mm512_loadu_si512(codes);
    const __m512i second = _mm512_loadu_si512(codes + 64);
    const __m512i even_quarters = _mm512_set_epi64(13, 12, 9, 8, 5, 4, 1, 0);
    const __m512i odd_quarters = _mm512_set_epi64(15, 14, 11, 10, 7, 6, 3, 2);
    Raw raw;
    decode(_mm512_permutex2var_epi64(first, even_quarters, second), raw.pairs);
    decode(_mm512_permutex2var_epi64(first, odd_quarters, second), raw.pairs + 2);
    return raw;
  }
  template <size_t kVector>
  TIDEPOOL_INLINE static __m512 vector(const Raw& raw) {
    return bf16_vector<kVector>(raw);
  }
};

struct Bfloat16 {
  static constexpr bool kHasScales = false;
  static constexpr size_t kGroupBytes = 256;
  static constexpr size_t kBytesAfterGroup = 0;
  static constexpr size_t kGroup = 128;
  static constexpr size_t kVectors = 8;
  static constexpr size_t kGroupBlocks = 4;
  static constexpr size_t column(size_t vector, size_t lane) { return 32 * (vector / 2) + 2 * lane + vector % 2; }
  static void pack(const float* x, float* packed) { pack_gathered<Bfloat16>(x, packed); }
  static size_t row_bytes(size_t in) { return 2 * in; }
  static const uint8_t* row_scales(const MatrixView& /*weight*/, size_t /*o*/) { return nullptr; }

  using Raw = Bf16Pairs;
  TIDEPOOL_INLINE static Raw load(const std::byte* codes) {
    Raw raw;
    for (size_t i = 0; i < 4; ++i)
      raw.pairs[i] = _mm512_loadu_si512(codes + 64 * i);
    return raw;
  }
  template <size_t kVector>
  TIDEPOOL_INLINE static __m512 vector(const Raw& raw) {
    return bf16_vector<kVector>(raw);
  }
};

struct Float32 {
  static constexpr bool kHasScales = false;
  static constexpr size_t kGroup = 128;
  static constexpr size_t kVectors = 8;
  static constexpr size_t kGroupBlocks = 4;
  static constexpr size_t kGroupBytes = 512;
  static constexpr size_t kBytesAfterGroup = 0;
  static size_t row_bytes(size_t in) { return 4 * in; }
  static const uint8_t* row_scales(const MatrixView& /*weight*/, size_t /*o*/) { return nullptr; }
  static void pack(const float* x, float* packed) { pack_straight<kVectors>(x, packed); }

  struct Raw {
    __m512 value[kVectors];
  };
  TIDEPOOL_INLINE static Raw load(const std::byte* codes) {
    Raw raw;
    for (size_t i = 0; i < kVectors; ++i)
      raw.value[i] = _mm512_loadu_ps(codes + 64 * i);
    return raw;
  }
  template <size_t kVector>
  TIDEPOOL_INLINE static __m512 vector(const Raw& raw) {
    return raw.value[kVector];
  }
};

}  // namespace

namespace avx512 {

void linear_fp8(const LinearArgs& args) noexcept {
  linear_rows<Fp8>(args);
}
void linear_fp4(const LinearArgs& args) noexcept {
  linear_rows<Fp4>(args);
}
void linear_bf16(const LinearArgs& args) noexcept {
  linear_rows<Bfloat16>(args);
}
void linear_f32(const LinearArgs& args) noexcept {
  linear_rows<Float32>(args);
}

}  // namespace avx512
}  // namespace tidepool::kernels
