#pragma once

// Functions of Vec (vec_avx512.h or vec_avx2.h, included before this) that both instruction sets share.

namespace tidepool::kernels {
namespace {

TIDEPOOL_INLINE size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

struct FloatTable {
  float value[256];
};
constexpr FloatTable e8m0_values() {
  FloatTable table{};
  double value = 0x1p-127;
  for (unsigned code = 0; code < 255; ++code, value *= 2)
    table.value[code] = static_cast<float>(value);
  table.value[255] = __builtin_nanf("");
  return table;
}
inline constexpr FloatTable kE8m0Values = e8m0_values();

/// 2^(code - 127); 0 is the subnormal 2^-127, 255 is NaN.
TIDEPOOL_INLINE float e8m0_value(uint8_t code) {
  return kE8m0Values.value[code];
}

/// Nearest bfloat16, ties to even; a NaN keeps the upper bits of its payload and becomes quiet.
TIDEPOOL_INLINE Vec::F bf16_rounded(Vec::F a) {
  return Vec::round_to_bf16(a);
}

/// e^x. Below -104 it is 0, above 89 infinite; NaN stays NaN. Against exact values the error is below 2 units of the
/// last place where the result is normal.
TIDEPOOL_INLINE Vec::F exponential(Vec::F x) {
  x = Vec::min(Vec::all(89.0F), Vec::max(Vec::all(-104.0F), x));
  const Vec::F n = Vec::round_to_integer(Vec::mul(x, Vec::all(1.44269504F)));
  // ln 2 in two parts, the first with so few bits that n times it is exact.
  Vec::F r = Vec::fnma(n, Vec::all(0.693359375F), x);
  r = Vec::fnma(n, Vec::all(-2.12194440e-4F), r);
  // The Taylor polynomial of degree 7: on |r| <= ln 2 / 2 the rest is below 0.347^8 / 8! = 5.2e-9, a tenth of a unit.
  Vec::F p = Vec::all(1.0F / 5040);
  p = Vec::fma(p, r, Vec::all(1.0F / 720));
  p = Vec::fma(p, r, Vec::all(1.0F / 120));
  p = Vec::fma(p, r, Vec::all(1.0F / 24));
  p = Vec::fma(p, r, Vec::all(1.0F / 6));
  p = Vec::fma(p, r, Vec::all(0.5F));
  p = Vec::fma(p, r, Vec::all(1.0F));
  p = Vec::fma(p, r, Vec::all(1.0F));
  return Vec::scale_by_power(p, n);
}

/// The same for one number, so that scalar and vector parts of a kernel agree to the bit.
TIDEPOOL_INLINE float exponential(float x) {
  float values[Vec::kLanes];
  Vec::store(values, exponential(Vec::all(x)));
  return values[0];
}

}  // namespace
}  // namespace tidepool::kernels
