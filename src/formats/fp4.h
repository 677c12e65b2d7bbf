#pragma once

#include <cstdint>

namespace tidepool {

/// FP4 E2M1: sign, 2 exponent bits, 1 mantissa bit: 0, .5, 1, 1.5, 2, 3, 4, 6. Only the low four bits are used.
/// In memory two codes share a byte, the even element in the low nibble.
struct E2m1 {
  uint8_t bits = 0;
  friend bool operator==(E2m1, E2m1) = default;
};

inline constexpr float kE2m1Max = 6.0F;

[[nodiscard]] float to_float(E2m1 value);

/// Round to nearest, ties to the even code (0.25 -> 0, 0.75 -> 1, 2.5 -> 2, 5 -> 4), after clamping to +-6.
/// NaN has no code; it becomes +-6 as the clamp of the reference gives it (documented, tested).
[[nodiscard]] E2m1 to_e2m1(float value);

}  // namespace tidepool
