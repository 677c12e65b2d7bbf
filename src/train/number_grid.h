#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace tidepool {

/// `value` rounded to nearest even to `kMantissaBits` behind the point, with steps that get no finer below
/// 2^kLeastExponent, after clamping to +-`largest`. Signs of zeros stay. Without branches, so that loops over it become
/// vector instructions. `value` is finite.
template <int kMantissaBits, int kLeastExponent>
[[nodiscard]] constexpr float round_to_grid(float value, float largest) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const float magnitude = std::min(std::bit_cast<float>(bits & 0x7fffffffU), largest);
  // In a sum with 2^(exponent + 23 - kMantissaBits) the last place is the wanted step: the addition rounds.
  const uint32_t exponent = std::max(std::bit_cast<uint32_t>(magnitude) >> 23U, uint32_t{127 + kLeastExponent});
  const float shift = std::bit_cast<float>((exponent + 23 - kMantissaBits) << 23U);
  return std::bit_cast<float>(std::bit_cast<uint32_t>((magnitude + shift) - shift) | (bits & 0x80000000U));
}

/// As to_float(to_e4m3(value)).
[[nodiscard]] constexpr float round_to_e4m3(float value) {
  return round_to_grid<3, -6>(value, 448.0F);
}

/// As to_float(to_e2m1(value)).
[[nodiscard]] constexpr float round_to_e2m1(float value) {
  return round_to_grid<1, 0>(value, 6.0F);
}

/// The largest magnitude; NaN where any value is infinite or NaN.
[[nodiscard]] inline float largest_magnitude(std::span<const float> values) {
  uint32_t largest = 0;
  for (const float value : values)
    largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7fffffffU);
  return std::bit_cast<float>(largest < 0x7f800000U ? largest : 0x7fc00000U);
}

}  // namespace tidepool
