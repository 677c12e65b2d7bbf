#include "kernels/gemm_kernels_internal.h"
#include "kernels/vec_avx2.h"

#include "kernels/square_avx2.h"

#include "kernels/gemm_vector.h"

namespace tidepool::kernels {

namespace {
using Gemm = VectorGemm<6>;  // 12 sums, 2 vectors of columns and a broadcast: 15 of 16 registers
}

const GemmKernel kAvx2Gemm = {.name = "avx2",
                              .precision = GemmPrecision::kFloat32,
                              .panel_rows = 6,
                              .panel_cols = Gemm::kCols,
                              .left_bytes = Gemm::left_bytes,
                              .right_bytes = Gemm::right_bytes,
                              .pack_left = Gemm::pack_left,
                              .pack_right = Gemm::pack_right,
                              .multiply = Gemm::multiply<>};

}  // namespace tidepool::kernels
