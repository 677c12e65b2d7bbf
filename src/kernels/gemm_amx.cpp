#include "kernels/amx.h"
#include "kernels/gemm_kernels_internal.h"
#include "kernels/gemm_tiles_amx.h"

// The product on the processor's own tiles.

namespace tidepool::kernels {
namespace {

void multiply(const GemmTileArgs& args) noexcept {
  HardwareTiles tiles;
  multiply_panels(args, tiles);
}
void begin() noexcept {
  HardwareTiles::configure(whole_tiles());
}
void end() noexcept {
  HardwareTiles::release();
}

}  // namespace

const GemmKernel kAmxGemm = {.name = "amx",
                             .precision = GemmPrecision::kBf16,
                             .panel_rows = kTilePanelRows,
                             .panel_cols = kPairColumns,
                             .left_bytes = tile_rows_bytes,
                             .right_bytes = pair_columns_bytes,
                             .pack_left = pack_tile_rows,
                             .pack_right = pack_pair_columns,
                             .multiply = multiply,
                             .begin = begin,
                             .end = end};

}  // namespace tidepool::kernels
