#include "kernels/amx_emulator.h"
#include "kernels/formats_amx.h"
#include "kernels/tiles_amx.h"

// The same linears on emulated tiles: for tests, on processors that have AVX-512 and no tiles.

namespace tidepool::kernels {
namespace {

/// AmxEmulator with the functions of HardwareTiles.
struct EmulatedTiles {
  AmxEmulator emulator;

  void configure(const TileConfig& config) { emulator.configure(config); }
  void release() { emulator.release(); }
  template <int kTile>
  void zero() {
    emulator.zero(kTile);
  }
  template <int kTile>
  void load(const void* from, size_t stride) {
    emulator.load(kTile, from, stride);
  }
  template <int kTile>
  void store(void* to, size_t stride) {
    emulator.store(kTile, to, stride);
  }
  template <int kSum, int kA, int kB>
  void multiply() {
    emulator.multiply(kSum, kA, kB);
  }
};

}  // namespace

namespace amx_emulated {

void linear_fp8(const LinearArgs& args) noexcept {
  linear_on_tiles<Fp8Tile, EmulatedTiles>(args, avx512::linear_fp8);
}
void linear_fp4(const LinearArgs& args) noexcept {
  linear_on_tiles<Fp4Tile, EmulatedTiles>(args, avx512::linear_fp4);
}
void linear_bf16(const LinearArgs& args) noexcept {
  linear_on_tiles<Bf16Tile, EmulatedTiles>(args, avx512::linear_bf16);
}

}  // namespace amx_emulated
}  // namespace tidepool::kernels
