#include "formats/fp4.h"

#include <array>
#include <bit>

namespace tidepool {
namespace {

constexpr std::array<float, 16> kE2m1Values = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                               -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

/// Ties go to the even code, so a midpoint belongs to its lower neighbour where that one's code is even.
uint8_t magnitude_code(float magnitude) {
  // Added up without branches, which would be guessed wrongly every other time. NaN, which compares false with
  // everything, is 7.
  const int below = (magnitude <= 0.25F ? 1 : 0) + (magnitude < 0.75F ? 1 : 0) + (magnitude <= 1.25F ? 1 : 0) +
                    (magnitude < 1.75F ? 1 : 0) + (magnitude <= 2.5F ? 1 : 0) + (magnitude < 3.5F ? 1 : 0) +
                    (magnitude <= 5.0F ? 1 : 0);
  return static_cast<uint8_t>(7 - below);
}

}  // namespace

float to_float(E2m1 value) {
  return kE2m1Values[value.bits & 0x0fu];
}

E2m1 to_e2m1(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 31) << 3);
  return {static_cast<uint8_t>(sign | magnitude_code(std::bit_cast<float>(bits & 0x7fffffffu)))};
}

}  // namespace tidepool
