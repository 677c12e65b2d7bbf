#include "kernels/amx.h"
#include "kernels/formats_amx.h"
#include "kernels/tiles_amx.h"

// The linears on the processor's own tiles.

namespace tidepool::kernels::amx {

void linear_fp8(const LinearArgs& args) noexcept {
  linear_on_tiles<Fp8Tile, HardwareTiles>(args, avx512::linear_fp8);
}
void linear_fp4(const LinearArgs& args) noexcept {
  linear_on_tiles<Fp4Tile, HardwareTiles>(args, avx512::linear_fp4);
}
void linear_bf16(const LinearArgs& args) noexcept {
  linear_on_tiles<Bf16Tile, HardwareTiles>(args, avx512::linear_bf16);
}

}  // namespace tidepool::kernels::amx
