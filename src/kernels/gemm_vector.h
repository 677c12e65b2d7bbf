#pragma once

// The product in binary32 for any Vec (vec_avx2.h, vec_avx512.h). Included by gemm_avx2.cpp and gemm_avx512.cpp only,
// after square_avx2.h.
//
// A panel of the left operand is [depth, kPitch] values, of which kRows count; one of the right operand is
// [depth, 2 * lanes]. A tile of kRows x 2 vectors of sums is open at a time, as many as the registers hold.

#include "kernels/gemm.h"

namespace tidepool::kernels {
namespace {

template <size_t kPanelRows>
struct VectorGemm {
  static constexpr size_t kLanes = Vec::kLanes;
  static constexpr size_t kPitch = (kPanelRows + 7) / 8 * 8;
  static constexpr size_t kCols = 2 * kLanes;

  static size_t left_bytes(size_t depth) noexcept { return (depth * kPitch * sizeof(float) + 63) / 64 * 64; }
  static size_t right_bytes(size_t depth) noexcept { return (depth * kCols * sizeof(float) + 63) / 64 * 64; }

  /// Steps from `begin` on, one value after the other.
  template <size_t kWidth>
  static void pack_steps(const GemmPackArgs& args, size_t begin) noexcept {
    auto* out = reinterpret_cast<float*>(args.packed);
    for (size_t step = begin; step < args.depth; ++step) {
      for (size_t lane = 0; lane < kWidth; ++lane)
        out[step * kWidth + lane] =
            lane < args.lanes ? args.from[lane * args.lane_stride + step * args.step_stride] : 0.0F;
    }
  }

  /// Lanes that lie beside each other are copied, steps that do are turned in squares of four. A panel has kFull lanes,
  /// or less at an edge; others hold anything that is a number of the operand's.
  template <size_t kWidth, size_t kFull>
  static void pack(const GemmPackArgs& args) noexcept {
    static_assert(kWidth % 4 == 0);
    auto* out = reinterpret_cast<float*>(args.packed);
    const size_t depth = args.depth / 4 * 4;
    if (args.lanes == kFull && args.lane_stride == 1) {
      for (size_t step = 0; step < args.depth; ++step) {
        const float* from = args.from + step * args.step_stride;
        for (size_t lane = 0; lane < kWidth; ++lane)
          out[step * kWidth + lane] = lane < kFull ? from[lane] : 0.0F;
      }
    } else if (args.step_stride == 1) {
      for (size_t lane = 0; lane < kWidth; lane += 4) {
        const size_t first = std::min(lane, args.lanes - 1);
        const float* from = args.from + first * args.lane_stride;
        for (size_t step = 0; step < depth; step += 4)
          turn_square(from + step, args.lane_stride, args.lanes - first, out + step * kWidth + lane, kWidth);
      }
      pack_steps<kWidth>(args, depth);
    } else {
      pack_steps<kWidth>(args, 0);
    }
  }

  static void pack_left(const GemmPackArgs& args) noexcept { pack<kPitch, kPanelRows>(args); }
  static void pack_right(const GemmPackArgs& args) noexcept { pack<kCols, kCols>(args); }

  template <size_t kRows>
  static void multiply_rows(const GemmTileArgs& args) noexcept {
    const float* left = reinterpret_cast<const float*>(args.left) + args.begin * kPitch;
    const float* right = reinterpret_cast<const float*>(args.right) + args.begin * kCols;
    Vec::F sums[kRows][2];
    for (size_t r = 0; r < kRows; ++r)
      sums[r][0] = sums[r][1] = Vec::zero();
    for (size_t step = 0; step < args.depth; ++step, left += kPitch, right += kCols) {
      const Vec::F low = Vec::load(right);
      const Vec::F high = Vec::load(right + kLanes);
      for (size_t r = 0; r < kRows; ++r) {
        const Vec::F value = Vec::all(left[r]);
        sums[r][0] = Vec::fma(value, low, sums[r][0]);
        sums[r][1] = Vec::fma(value, high, sums[r][1]);
      }
    }
    store_sums<kRows>(args, sums);
  }

  template <size_t kRows>
  TIDEPOOL_INLINE static void store_sums(const GemmTileArgs& args, const Vec::F (&sums)[kRows][2]) {
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t half = 0; half < 2; ++half) {
        if (args.cols <= half * kLanes) continue;
        const size_t count = args.cols - half * kLanes;
        float* c = args.c + r * args.c_stride + half * kLanes;
        Vec::store(c, args.adds ? Vec::add(Vec::load(c, count), sums[r][half]) : sums[r][half], count);
      }
    }
  }

  /// Calls the version for args.rows.
  template <size_t kRows = kPanelRows>
  static void multiply(const GemmTileArgs& args) noexcept {
    if constexpr (kRows > 1) {
      if (args.rows < kRows) return multiply<kRows - 1>(args);
    }
    multiply_rows<kRows>(args);
  }
};

}  // namespace
}  // namespace tidepool::kernels
