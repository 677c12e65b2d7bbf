#include "formats/row_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "formats/fp4.h"
#include "formats/fp8.h"

namespace tidepool {
namespace {

/// Floors of a block's largest magnitude, so that a block of zeros has a scale. (docs/numerics.md)
constexpr float kFp8AmaxFloor = 1e-4F;
constexpr float kFp4Block16AmaxFloor = 6.0F * 0x1p-9F;    // gives the smallest E4M3 scale, 2^-9
constexpr float kFp4Block32AmaxFloor = 6.0F * 0x1p-126F;  // gives the smallest normal power of two

constexpr uint8_t kE8m0Nan = 0xff;

size_t block_of(RowFormat format) {
  switch (format) {
    case RowFormat::kFp8Block32:
    case RowFormat::kFp4Block32: return 32;
    case RowFormat::kFp4Block16: return 16;
    case RowFormat::kFloat32: return 1;
  }
  TIDEPOOL_CHECK(false, "not a row format");
}

/// Bytes of the codes, which precede the scales.
size_t code_bytes(RowFormat format, size_t width) {
  switch (format) {
    case RowFormat::kFp8Block32: return width;
    case RowFormat::kFp4Block16:
    case RowFormat::kFp4Block32: return width / 2;
    case RowFormat::kFloat32: return width * sizeof(float);
  }
  TIDEPOOL_CHECK(false, "not a row format");
}

/// The largest magnitude, at least `floor`; NaN when any value is NaN or infinite, so that its block reads as NaN
/// instead of as a plausible number.
float block_amax(std::span<const float> values, float floor) {
  float amax = floor;
  for (const float value : values) {
    if (!std::isfinite(value)) return std::bit_cast<float>(0x7fc00000u);
    amax = std::max(amax, std::fabs(value));
  }
  return amax;
}

E8m0 power_of_two_scale(float amax, float code_max) {
  return std::isnan(amax) ? E8m0{kE8m0Nan} : ceil_to_e8m0(amax / code_max);
}

void pack_fp4(std::span<const float> values, float scale, std::byte* codes) {
  for (size_t i = 0; i < values.size(); i += 2) {
    const unsigned low = to_e2m1(values[i] / scale).bits;
    const unsigned high = to_e2m1(values[i + 1] / scale).bits;
    codes[i / 2] = static_cast<std::byte>(low | (high << 4));
  }
}

void unpack_fp4(const std::byte* codes, float scale, std::span<float> out) {
  for (size_t i = 0; i < out.size(); i += 2) {
    const auto byte = static_cast<uint8_t>(codes[i / 2]);
    out[i] = to_float(E2m1{static_cast<uint8_t>(byte & 0x0fu)}) * scale;
    out[i + 1] = to_float(E2m1{static_cast<uint8_t>(byte >> 4)}) * scale;
  }
}

void pack_block(RowFormat format, std::span<const float> values, std::byte* codes, std::byte* scale) {
  if (format == RowFormat::kFp8Block32) {
    const E8m0 code = power_of_two_scale(block_amax(values, kFp8AmaxFloor), kE4m3Max);
    *scale = static_cast<std::byte>(code.bits);
    for (size_t i = 0; i < values.size(); ++i) {
      codes[i] = static_cast<std::byte>(to_e4m3(values[i] / to_float(code)).bits);
    }
  } else if (format == RowFormat::kFp4Block16) {
    const E4m3 code = to_e4m3(block_amax(values, kFp4Block16AmaxFloor) / kE2m1Max);
    *scale = static_cast<std::byte>(code.bits);
    pack_fp4(values, to_float(code), codes);
  } else {
    const E8m0 code = power_of_two_scale(block_amax(values, kFp4Block32AmaxFloor), kE2m1Max);
    *scale = static_cast<std::byte>(code.bits);
    pack_fp4(values, to_float(code), codes);
  }
}

void unpack_block(RowFormat format, const std::byte* codes, std::byte scale_byte, std::span<float> out) {
  const auto scale_bits = static_cast<uint8_t>(scale_byte);
  if (format == RowFormat::kFp8Block32) {
    const float scale = to_float(E8m0{scale_bits});
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = to_float(E4m3{static_cast<uint8_t>(codes[i])}) * scale;
  } else if (format == RowFormat::kFp4Block16) {
    unpack_fp4(codes, to_float(E4m3{scale_bits}), out);
  } else {
    unpack_fp4(codes, to_float(E8m0{scale_bits}), out);
  }
}

}  // namespace

size_t row_bytes(RowFormat format, size_t width) {
  const size_t block = block_of(format);
  TIDEPOOL_CHECK(width % block == 0, "the width of a packed row must be a multiple of its block");
  return code_bytes(format, width) + (format == RowFormat::kFloat32 ? 0 : width / block);
}

void pack_row(RowFormat format, std::span<const float> values, std::span<std::byte> out) {
  TIDEPOOL_CHECK(out.size() == row_bytes(format, values.size()), "packed row of the wrong size");
  if (format == RowFormat::kFloat32) {
    if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
    return;
  }
  const size_t block = block_of(format);
  std::byte* codes = out.data();
  std::byte* scales = out.data() + code_bytes(format, values.size());
  for (size_t begin = 0; begin < values.size(); begin += block) {
    pack_block(format, values.subspan(begin, block), codes + code_bytes(format, begin), scales + begin / block);
  }
}

void unpack_row(RowFormat format, std::span<const std::byte> row, std::span<float> out) {
  TIDEPOOL_CHECK(row.size() == row_bytes(format, out.size()), "packed row of the wrong size");
  if (format == RowFormat::kFloat32) {
    if (!out.empty()) std::memcpy(out.data(), row.data(), row.size());
    return;
  }
  const size_t block = block_of(format);
  const std::byte* codes = row.data();
  const std::byte* scales = row.data() + code_bytes(format, out.size());
  for (size_t begin = 0; begin < out.size(); begin += block) {
    unpack_block(format, codes + code_bytes(format, begin), scales[begin / block], out.subspan(begin, block));
  }
}

}  // namespace tidepool
