#include "kernels/emulated_tiles.h"
#include "kernels/gemm_kernels_internal.h"
#include "kernels/gemm_tiles_amx.h"

// The same product on emulated tiles: for tests, on processors that have AVX-512 and no tiles.

namespace tidepool::kernels {
namespace {

void multiply(const GemmTileArgs& args) noexcept {
  EmulatedTiles tiles;
  tiles.configure(whole_tiles());
  multiply_panels(args, tiles);
  tiles.release();
}

}  // namespace

const GemmKernel kEmulatedAmxGemm = {.name = "amx_emulated",
                                     .precision = GemmPrecision::kBf16,
                                     .panel_rows = kTilePanelRows,
                                     .panel_cols = kPairColumns,
                                     .left_bytes = tile_rows_bytes,
                                     .right_bytes = pair_columns_bytes,
                                     .pack_left = pack_tile_rows,
                                     .pack_right = pack_pair_columns,
                                     .multiply = multiply};

}  // namespace tidepool::kernels
