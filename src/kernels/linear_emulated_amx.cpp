#include "kernels/emulated_tiles.h"
#include "kernels/formats_amx.h"
#include "kernels/tiles_amx.h"

// The same linears on emulated tiles: for tests, on processors that have AVX-512 and no tiles.

namespace tidepool::kernels {
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
