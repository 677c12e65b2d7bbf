#include "formats/fp8.h"

#include <array>
#include <bit>
#include <cstddef>

namespace tidepool {
namespace {

constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kInfinityBits = 0x7f800000u;

constexpr float decode_e4m3(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t magnitude = bits & 0x7fu;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  // Exponent 0: multiples of 2^-9, exact in binary32.
  if (magnitude < 8) {
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9F));
  }
  // Otherwise move the seven bits to the top of the binary32 mantissa and change the bias from 7 to 127.
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (size_t code = 0; code < values.size(); ++code)
    values[code] = decode_e4m3(static_cast<uint8_t>(code));
  return values;
}();

}  // namespace

float to_float(E4m3 value) {
  return kE4m3Values[value.bits];
}

float to_float(E8m0 value) {
  if (value.bits == 255) return std::bit_cast<float>(0x7fc00000u);
  // 2^-127 is below the normal range of binary32: half of its smallest normal.
  if (value.bits == 0) return 0x1p-127F;
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 23);
}

E4m3 to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits & kSignBit) >> 24);
  const uint32_t magnitude_bits = bits & ~kSignBit;
  if (magnitude_bits > kInfinityBits) return {static_cast<uint8_t>(sign | 0x7fu)};
  const float magnitude = std::bit_cast<float>(magnitude_bits);
  if (magnitude >= kE4m3Max) return {static_cast<uint8_t>(sign | 0x7eu)};
  if (magnitude < 0x1p-6F) {
    // Adding 2^14 leaves steps of 2^-9 (23 mantissa bits below it), so the addition itself rounds to nearest even and
    // the low bits of the sum count the steps; eight of them are the smallest normal, whose code is 8.
    const uint32_t sum = std::bit_cast<uint32_t>(magnitude + 0x1p14F);
    return {static_cast<uint8_t>(sign | (sum - std::bit_cast<uint32_t>(0x1p14F)))};
  }
  // Round the mantissa from 23 bits to 3, ties to even; a carry moves on into the exponent as it should.
  const uint32_t rounded = (magnitude_bits + 0x7ffffu + ((magnitude_bits >> 20) & 1u)) >> 20;
  return {static_cast<uint8_t>(sign | (rounded - (120u << 3)))};
}

E8m0 ceil_to_e8m0(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t exponent = (bits >> 23) & 0xffu;
  return {static_cast<uint8_t>(exponent + ((bits & 0x7fffffu) != 0 ? 1u : 0u))};
}

}  // namespace tidepool
