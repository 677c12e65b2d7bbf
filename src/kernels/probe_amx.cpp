#include "kernels/amx.h"
#include "kernels/amx_status.h"
#include "kernels/kernel_table_internal.h"

// Runs before it is known that there are tiles, or AVX-512: nothing here may need more than the tile instructions, so
// this file is built without the flags of the other *_amx.cpp.

namespace tidepool::kernels {
namespace {

/// Integers so small that every order of summation gives the same.
int left(size_t m, size_t k) {
  return static_cast<int>((m * 5 + k * 3) % 7) - 3;
}
int right(size_t k, size_t n) {
  return static_cast<int>((k * 2 + n * 7) % 9) - 4;
}

/// bfloat16 of an integer below 256 in magnitude: the upper half of its binary32.
uint16_t bf16_bits(int value) {
  const auto number = static_cast<float>(value);
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &number, sizeof bits);
  return static_cast<uint16_t>(bits >> 16U);
}

}  // namespace

namespace amx {

namespace {

TileConfig whole_tiles(size_t count) {
  TileConfig config;
  for (size_t tile = 0; tile < count; ++tile) {
    config.rows[tile] = kTileSide;
    config.row_bytes[tile] = kTileRowBytes;
  }
  return config;
}

}  // namespace

bool multiplies_one_tile_right() noexcept {
  constexpr size_t kColumns = 32;
  alignas(64) uint16_t a[kTileSide][kColumns];
  alignas(64) uint16_t b[kTileSide][kTileSide][2];
  alignas(64) float sum[kTileSide][kTileSide];
  for (size_t i = 0; i < kTileSide; ++i) {
    for (size_t k = 0; k < kColumns; ++k) {
      a[i][k] = bf16_bits(left(i, k));
      b[k / 2][i][k % 2] = bf16_bits(right(k, i));
    }
  }
  HardwareTiles::configure(whole_tiles(3));
  HardwareTiles::zero<0>();
  HardwareTiles::load<1>(a, kTileRowBytes);
  HardwareTiles::load<2>(b, kTileRowBytes);
  HardwareTiles::multiply<0, 1, 2>();
  HardwareTiles::multiply<0, 1, 2>();
  HardwareTiles::store<0>(sum, kTileRowBytes);
  HardwareTiles::release();
  bool is_right = true;
  for (size_t m = 0; m < kTileSide; ++m) {
    for (size_t n = 0; n < kTileSide; ++n) {
      int expected = 0;
      for (size_t k = 0; k < kColumns; ++k)
        expected += 2 * left(m, k) * right(k, n);
      is_right = is_right && sum[m][n] == static_cast<float>(expected);
    }
  }
  return is_right;
}

}  // namespace amx

void multiply_tiles(size_t products) noexcept {
  HardwareTiles::configure(amx::whole_tiles(6));
  HardwareTiles::zero<4>();
  HardwareTiles::zero<5>();
  // Four sums hide the latency of a product.
  for (size_t i = 0; i < products; i += 4) {
    HardwareTiles::multiply<0, 4, 5>();
    HardwareTiles::multiply<1, 4, 5>();
    HardwareTiles::multiply<2, 4, 5>();
    HardwareTiles::multiply<3, 4, 5>();
  }
  HardwareTiles::release();
}

}  // namespace tidepool::kernels
