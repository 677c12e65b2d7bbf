#include "kernels/gemm_bf16_avx512.h"
#include "kernels/gemm_kernels_internal.h"

// The product by VDPBF16PS: 14 rows by 32 columns of sums are open at a time, 28 registers; pairs of the left operand
// are read as broadcast operands.

namespace tidepool::kernels {
namespace {

constexpr size_t kPanelRows = 14;

size_t left_bytes(size_t depth) noexcept {
  return group_bytes(depth);
}

void pack_left(const GemmPackArgs& args) noexcept {
  pack_pairs(args, 0, args.packed);
}

TIDEPOOL_INLINE __m512bh as_pairs(__m512i bits) {
  return reinterpret_cast<__m512bh>(bits);
}

template <size_t kRows>
void multiply_rows(const GemmTileArgs& args) noexcept {
  const auto* left = reinterpret_cast<const int32_t*>(args.left) + args.begin / 2 * kGroupLanes;
  const std::byte* low = args.right + args.begin * kGroupLanes * 2;
  const std::byte* high = low + group_bytes(args.panel_depth);
  const size_t pairs = (args.depth + 1) / 2;
  __m512 sums[kRows][2];
  for (size_t r = 0; r < kRows; ++r)
    sums[r][0] = sums[r][1] = _mm512_setzero_ps();
  for (size_t p = 0; p < pairs; ++p, left += kGroupLanes) {
    const __m512bh first = as_pairs(_mm512_load_si512(low + p * 64));
    const __m512bh second = as_pairs(_mm512_load_si512(high + p * 64));
    for (size_t r = 0; r < kRows; ++r) {
      const __m512bh value = as_pairs(_mm512_set1_epi32(left[r]));
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], value, first);
      sums[r][1] = _mm512_dpbf16_ps(sums[r][1], value, second);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t half = 0; half < 2; ++half) {
      if (args.cols <= half * kGroupLanes) continue;
      const size_t count = args.cols - half * kGroupLanes;
      float* c = args.c + r * args.c_stride + half * kGroupLanes;
      Vec::store(c, args.adds ? Vec::add(Vec::load(c, count), sums[r][half]) : sums[r][half], count);
    }
  }
}

/// Calls the version for args.rows.
template <size_t kRows = kPanelRows>
void multiply(const GemmTileArgs& args) noexcept {
  if constexpr (kRows > 1) {
    if (args.rows < kRows) return multiply<kRows - 1>(args);
  }
  multiply_rows<kRows>(args);
}

}  // namespace

const GemmKernel kAvx512Bf16Gemm = {.name = "avx512bf16",
                                    .precision = GemmPrecision::kBf16,
                                    .panel_rows = kPanelRows,
                                    .panel_cols = kPairColumns,
                                    .left_bytes = left_bytes,
                                    .right_bytes = pair_columns_bytes,
                                    .pack_left = pack_left,
                                    .pack_right = pack_pair_columns,
                                    .multiply = multiply<>};

}  // namespace tidepool::kernels
