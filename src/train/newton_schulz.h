#pragma once

#include <span>

#include "base/span2d.h"
#include "base/thread_pool.h"
#include "kernels/gemm.h"

namespace tidepool {

/// What products of an optimiser's matrices run on. All must outlive it.
struct MatrixMath {
  ThreadPool& pool;
  const kernels::GemmKernel& gemm;
  kernels::GemmWorkspace& workspace;  ///< for packed operands
  kernels::GemmWorkspace& scratch;    ///< for what lies between products
};

/// Each matrix, in place, becomes nearly its nearest (semi-)orthogonal one: with M / ||M||_F to begin with, 8 steps
/// M <- a M + b (M M^T) M + c (M M^T)^2 M with (3.4445, -4.7750, 2.0315), which bring every singular value near 1, then
/// 2 with (2, -1.5, 0.5), which settle it there. Singular values below about 1e-3 of the norm are not yet at 1 after
/// that; a zero matrix stays zero. All matrices take each step together.
void orthogonalise(const MatrixMath& math, std::span<const Span2d<float>> matrices);

}  // namespace tidepool
