#pragma once

#include <cstdint>

namespace tidepool {

/// FP8 E4M3 ("fn"): sign, 4 exponent bits (bias 7), 3 mantissa bits. No infinity; 0x7f and 0xff are NaN; largest 448.
struct E4m3 {
  uint8_t bits = 0;
  friend bool operator==(E4m3, E4m3) = default;
};

/// FP8 E8M0: the power of two 2^(bits - 127); 255 is NaN. A multiplier for a block of values.
struct E8m0 {
  uint8_t bits = 0;
  friend bool operator==(E8m0, E8m0) = default;
};

inline constexpr float kE4m3Max = 448.0F;

[[nodiscard]] float to_float(E4m3 value);
[[nodiscard]] float to_float(E8m0 value);

/// Round to nearest, ties to even, after clamping to +-448. NaN gives NaN (0x7f with the sign kept).
[[nodiscard]] E4m3 to_e4m3(float value);

/// The smallest power of two >= value, read off the bit pattern: exponent, plus one when the mantissa is not zero.
/// `value` is positive and finite. (docs/numerics.md, "Activation quantiser")
[[nodiscard]] E8m0 ceil_to_e8m0(float value);

}  // namespace tidepool
