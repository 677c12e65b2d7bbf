#include <algorithm>

#include "kernels/gemm_kernels_internal.h"

// The plain kernel: panels are [depth, 4] values, sums take their terms one after the other.

namespace tidepool::kernels {
namespace {

constexpr size_t kPanel = 4;
constexpr size_t kLineBytes = 64;

size_t panel_bytes(size_t depth) noexcept {
  return (depth * kPanel * sizeof(float) + kLineBytes - 1) / kLineBytes * kLineBytes;
}

void pack(const GemmPackArgs& args) noexcept {
  auto* out = reinterpret_cast<float*>(args.packed);
  for (size_t step = 0; step < args.depth; ++step) {
    for (size_t lane = 0; lane < kPanel; ++lane)
      out[step * kPanel + lane] =
          lane < args.lanes ? args.from[lane * args.lane_stride + step * args.step_stride] : 0.0F;
  }
}

void multiply(const GemmTileArgs& args) noexcept {
  const float* left = reinterpret_cast<const float*>(args.left) + args.begin * kPanel;
  const float* right = reinterpret_cast<const float*>(args.right) + args.begin * kPanel;
  for (size_t r = 0; r < args.rows; ++r) {
    for (size_t c = 0; c < args.cols; ++c) {
      float sum = 0;
      for (size_t step = 0; step < args.depth; ++step)
        sum += left[step * kPanel + r] * right[step * kPanel + c];
      float& out = args.c[r * args.c_stride + c];
      out = args.adds ? out + sum : sum;
    }
  }
}

}  // namespace

const GemmKernel kReferenceGemm = {.name = "reference",
                                   .precision = GemmPrecision::kFloat32,
                                   .panel_rows = kPanel,
                                   .panel_cols = kPanel,
                                   .left_bytes = panel_bytes,
                                   .right_bytes = panel_bytes,
                                   .pack_left = pack,
                                   .pack_right = pack,
                                   .multiply = multiply};

}  // namespace tidepool::kernels
