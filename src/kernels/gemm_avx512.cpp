#include "kernels/gemm_kernels_internal.h"
#include "kernels/vec_avx512.h"

#include "kernels/square_avx2.h"

#include "kernels/gemm_vector.h"

namespace tidepool::kernels {

namespace {
using Gemm = VectorGemm<14>;  // 28 sums and 2 vectors of columns; rows are read as operands
}

const GemmKernel kAvx512Gemm = {.name = "avx512",
                                .precision = GemmPrecision::kFloat32,
                                .panel_rows = 14,
                                .panel_cols = Gemm::kCols,
                                .left_bytes = Gemm::left_bytes,
                                .right_bytes = Gemm::right_bytes,
                                .pack_left = Gemm::pack_left,
                                .pack_right = Gemm::pack_right,
                                .multiply = Gemm::multiply<>};

}  // namespace tidepool::kernels
