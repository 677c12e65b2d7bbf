#include "kernels/amx_emulator.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "formats/bf16.h"

namespace tidepool::kernels {
namespace {

constexpr float kSmallestNormal = std::numeric_limits<float>::min();

float flush(float value) {
  return std::fabs(value) < kSmallestNormal ? std::copysign(0.0F, value) : value;
}

/// `exact` rounded to binary32, with subnormal results as zero. A result is subnormal if it would be below 2^-126 were
/// its exponent unbounded: then 24 bits reach up to 2^-126 (1 - 2^-24), and the tie above that goes to 2^-126.
float round_and_flush(double exact) {
  constexpr double kRoundsToNormal = 0x1p-126 * (1 - 0x1p-25);
  const auto rounded = static_cast<float>(exact);
  return std::fabs(exact) < kRoundsToNormal ? std::copysign(0.0F, rounded) : rounded;
}

/// a * b + c, rounded once. The product of two bfloat16 has 16 bits. In binary64 (53 bits) its sum with 24 bits of c is
/// exact unless their exponents differ so much that the smaller part is far below half a unit of a sum that binary32
/// holds; so rounding to binary32 afterwards gives what one rounding would.
float multiply_add(float a, float b, float c) {
  return round_and_flush(static_cast<double>(flush(a)) * static_cast<double>(flush(b)) + static_cast<double>(flush(c)));
}
float add(float a, float b) {
  return round_and_flush(static_cast<double>(flush(a)) + static_cast<double>(flush(b)));
}

/// Two bfloat16 as they lie in a tile.
struct Pair {
  Bf16 even;
  Bf16 odd;
};
Pair pair_at(const std::byte* row, size_t index) {
  Pair pair;
  std::memcpy(&pair, row + index * sizeof pair, sizeof pair);
  return pair;
}

}  // namespace

AmxEmulator::AmxEmulator() {
  std::memset(tiles_, 0, sizeof tiles_);
}

AmxEmulator::~AmxEmulator() {
  TIDEPOOL_CHECK(!is_configured_, "tiles were not released");
}

void AmxEmulator::configure(const TileConfig& config) {
  TIDEPOOL_CHECK(config.palette == 1 && config.start_row == 0, "only palette 1 is known");
  for (const uint8_t reserved : config.reserved)
    TIDEPOOL_CHECK(reserved == 0, "reserved bytes of a tile configuration are zero");
  for (size_t i = 0; i < 16; ++i) {
    TIDEPOOL_CHECK(config.rows[i] <= kTileSide && config.row_bytes[i] <= kTileRowBytes,
                   "a tile is 16 rows of 64 bytes");
    TIDEPOOL_CHECK((config.rows[i] == 0) == (config.row_bytes[i] == 0), "a tile without rows has no bytes");
    TIDEPOOL_CHECK(i < kTileCount || config.rows[i] == 0, "there are eight tiles");
  }
  config_ = config;
  is_configured_ = true;
  std::memset(tiles_, 0, sizeof tiles_);
}

void AmxEmulator::release() {
  is_configured_ = false;
}

void AmxEmulator::check_configured(size_t tile) const {
  TIDEPOOL_CHECK(is_configured_ && tile < kTileCount && config_.rows[tile] != 0, "a tile that is not configured");
}

void AmxEmulator::zero(size_t tile) {
  check_configured(tile);
  std::memset(tiles_[tile], 0, sizeof tiles_[tile]);
}

void AmxEmulator::load(size_t tile, const void* from, size_t stride) {
  zero(tile);
  for (size_t r = 0; r < config_.rows[tile]; ++r)
    std::memcpy(tiles_[tile][r], static_cast<const std::byte*>(from) + r * stride, config_.row_bytes[tile]);
}

void AmxEmulator::store(size_t tile, void* to, size_t stride) const {
  check_configured(tile);
  for (size_t r = 0; r < config_.rows[tile]; ++r)
    std::memcpy(static_cast<std::byte*>(to) + r * stride, tiles_[tile][r], config_.row_bytes[tile]);
}

void AmxEmulator::multiply(size_t sum, size_t a, size_t b) {
  check_configured(sum);
  check_configured(a);
  check_configured(b);
  TIDEPOOL_CHECK(sum != a && sum != b && a != b, "a product takes three tiles");
  const size_t columns = config_.row_bytes[sum] / sizeof(float);
  const size_t pairs = config_.row_bytes[a] / sizeof(Pair);
  TIDEPOOL_CHECK(config_.rows[sum] == config_.rows[a] && config_.row_bytes[sum] == config_.row_bytes[b] &&
                     config_.row_bytes[sum] % sizeof(float) == 0 && config_.row_bytes[a] == 4 * config_.rows[b],
                 "the shapes of the tiles do not fit");
  for (size_t m = 0; m < config_.rows[sum]; ++m) {
    for (size_t n = 0; n < columns; ++n) {
      float even = 0;
      float odd = 0;
      for (size_t p = 0; p < pairs; ++p) {
        const Pair left = pair_at(tiles_[a][m], p);
        const Pair right = pair_at(tiles_[b][p], n);
        even = multiply_add(to_float(left.even), to_float(right.even), even);
        odd = multiply_add(to_float(left.odd), to_float(right.odd), odd);
      }
      std::byte* place = tiles_[sum][m] + n * sizeof(float);
      float total = 0;
      std::memcpy(&total, place, sizeof total);
      total = add(total, add(even, odd));
      std::memcpy(place, &total, sizeof total);
    }
  }
}

}  // namespace tidepool::kernels
