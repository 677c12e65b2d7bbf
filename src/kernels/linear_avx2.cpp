#include "kernels/kernel_table_internal.h"
#include "kernels/vec_avx2.h"
// After the Vec it is written in.
#include "kernels/linear_vector.h"

// The formats of weights for AVX2 with FMA and F16C.

namespace tidepool::kernels {
namespace {

/// E2M1, two to a byte. The values of 32 low nibbles and of 32 high ones are looked up as bfloat16, upper and lower
/// byte apart; put together they are four vectors of words, and a word is the upper half of a float. So eight floats
/// cost less than three operations. Lane l belongs to block l / 4.
struct Fp4 {
  static constexpr bool kHasScales = true;
  static constexpr size_t kGroup = 64;
  static constexpr size_t kVectors = 8;
  static constexpr size_t kGroupBlocks = 2;
  static constexpr size_t kGroupBytes = 32;
  static constexpr size_t kBytesAfterGroup = 0;
  static size_t row_bytes(size_t in) { return in / 2; }
  static const uint8_t* row_scales(const MatrixView& weight, size_t o) {
    return weight.scales + o * (weight.in / kBlock);
  }
  TIDEPOOL_INLINE static __m256 scales(const uint8_t* codes) {
    const __m128 first = _mm_set1_ps(e8m0_value(codes[0]));
    return _mm256_set_m128(_mm_set1_ps(e8m0_value(codes[1])), first);
  }
  static void pack(const float* x, float* packed) {
    constexpr size_t kFirstColumns[kVectors] = {0, 2, 1, 3, 16, 18, 17, 19};
    for (size_t v = 0; v < kVectors; ++v) {
      for (size_t l = 0; l < kLanes; ++l)
        packed[v * kLanes + l] = x[l / 4 * kBlock + kFirstColumns[v] + 4 * (l % 4)];
    }
  }

  struct Raw {
    __m256i words[4];  ///< columns 4i and 4i + 2 in dword i of four, then 4i + 1 and 4i + 3; the same 16 columns on
  };
  TIDEPOOL_INLINE static Raw load(const std::byte* codes) {
    const __m256i upper =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,  //
                                                  -0x80, -0x41, -0x41, -0x41, -0x40, -0x40, -0x40, -0x40));
    const __m256i lower = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40));
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i even = _mm256_and_si256(pairs, nibble);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(pairs, 4), nibble);
    const __m256i even_upper = _mm256_shuffle_epi8(upper, even);
    const __m256i even_lower = _mm256_shuffle_epi8(lower, even);
    const __m256i odd_upper = _mm256_shuffle_epi8(upper, odd);
    const __m256i odd_lower = _mm256_shuffle_epi8(lower, odd);
    return {{_mm256_unpacklo_epi8(even_lower, even_upper), _mm256_unpacklo_epi8(odd_lower, odd_upper),
             _mm256_unpackhi_epi8(even_lower, even_upper), _mm256_unpackhi_epi8(odd_lower, odd_upper)}};
  }
  template <size_t kVector>
  TIDEPOOL_INLINE static __m256 vector(const Raw& raw) {
    const __m256i words = raw.words[kVector / 2];
    return _mm256_castsi256_ps(kVector % 2 == 0
                                   ? _mm256_slli_epi32(words, 16)
                                   : _mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
  }
};

/// E4M3: one 32-column block after the other, columns in order.
struct Fp8 {
  static constexpr bool kHasScales = true;
  static constexpr size_t kGroup = 32;
  static constexpr size_t kVectors = 4;
  static constexpr size_t kGroupBlocks = 1;
  static constexpr size_t kGroupBytes = 32;
  static constexpr size_t kBytesAfterGroup = 0;
  static size_t row_bytes(size_t in) { return in; }
  static const uint8_t* row_scales(const MatrixView& weight, size_t o) {
    return weight.scales + o / kBlock * ((weight.in + kBlock - 1) / kBlock);
  }
  TIDEPOOL_INLINE static __m256 scales(const uint8_t* codes) { return _mm256_set1_ps(e8m0_value(codes[0])); }
  static void pack(const float* x, float* packed) { pack_straight<kVectors>(x, packed); }

  struct Raw {
    __m256 value[kVectors];
  };
  TIDEPOOL_INLINE static Raw load(const std::byte* codes) {
    Raw raw;
    for (size_t v = 0; v < kVectors; v += 2)
      Vec::decode_fp8_pair(codes + kLanes * v, raw.value + v);
    return raw;
  }
  template <size_t kVector>
  TIDEPOOL_INLINE static __m256 vector(const Raw& raw) {
    return raw.value[kVector];
  }
};

/// Formats of plain numbers: 64 columns in order, no scales.
template <size_t kBytes>
struct Plain {
  static constexpr bool kHasScales = false;
  static constexpr size_t kGroup = 64;
  static constexpr size_t kVectors = 8;
  static constexpr size_t kGroupBlocks = 2;
  static constexpr size_t kGroupBytes = kGroup * kBytes;
  static constexpr size_t kBytesAfterGroup = 0;
  static size_t row_bytes(size_t in) { return in * kBytes; }
  static const uint8_t* row_scales(const MatrixView& /*weight*/, size_t /*o*/) { return nullptr; }
  static void pack(const float* x, float* packed) { pack_straight<kVectors>(x, packed); }

  struct Raw {
    __m256 value[kVectors];
  };
  TIDEPOOL_INLINE static Raw load(const std::byte* codes) {
    Raw raw;
    for (size_t v = 0; v < kVectors; ++v) {
      const std::byte* from = codes + kLanes * kBytes * v;
      if constexpr (kBytes == 2) {
        raw.value[v] = Vec::load_bf16(from, kLanes);
      } else {
        raw.value[v] = Vec::load(reinterpret_cast<const float*>(from));
      }
    }
    return raw;
  }
  template <size_t kVector>
  TIDEPOOL_INLINE static __m256 vector(const Raw& raw) {
    return raw.value[kVector];
  }
};

}  // namespace

namespace avx2 {

void linear_fp8(const LinearArgs& args) noexcept {
  linear_rows<Fp8>(args);
}
void linear_fp4(const LinearArgs& args) noexcept {
  linear_rows<Fp4>(args);
}
void linear_bf16(const LinearArgs& args) noexcept {
  linear_rows<Plain<2>>(args);
}
void linear_f32(const LinearArgs& args) noexcept {
  linear_rows<Plain<4>>(args);
}

}  // namespace avx2
}  // namespace tidepool::kernels
