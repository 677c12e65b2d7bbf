#include "kernels/kernel_table_internal.h"
#include "kernels/vec_avx2.h"
// After the Vec it is written in.
#include "kernels/linear_vector.h"

// The formats of weights for AVX2 with FMA and F16C.

namespace tidepool::kernels {
namespace {

/// E2M1, two to a byte: dword i of 32 bytes holds columns 8i to 8i + 7, so vector n is nibble n of every dword, and
/// lane l belongs to block l / 4.
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
    for (size_t v = 0; v < kVectors; ++v) {
      for (size_t l = 0; l < kLanes; ++l)
        packed[v * kLanes + l] = x[8 * l + v];
    }
  }

  using Raw = Vec::Nibbles;
  TIDEPOOL_INLINE static Raw load(const std::byte* codes) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes))};
  }
  template <size_t kVector>
  TIDEPOOL_INLINE static __m256 vector(const Raw& raw) {
    return Vec::decode_nibble<static_cast<int>(kVector)>(raw);
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
    for (size_t v = 0; v < kVectors; ++v)
      raw.value[v] = Vec::decode_fp8(codes + 8 * v);
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
