#pragma once

#include <bit>
#include <cstdint>

namespace tidepool {

/// A bfloat16 as stored: the upper half of a binary32.
struct Bf16 {
  uint16_t bits = 0;
  friend bool operator==(Bf16, Bf16) = default;
};
static_assert(sizeof(Bf16) == 2);

/// Exact.
[[nodiscard]] constexpr float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

/// Round to nearest, ties to even; overflow becomes infinity; a NaN stays one (quiet, payload's upper bits kept).
[[nodiscard]] constexpr Bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

/// The value after a round trip through bfloat16.
[[nodiscard]] constexpr float round_bf16(float value) {
  return to_float(to_bf16(value));
}

}  // namespace tidepool
