#pragma once

#include "base/span2d.h"
#include "base/thread_pool.h"
#include "kernels/kernel_table.h"

namespace tidepool {

/// What arithmetic runs on: passed down, never global, so two of them work in one process. Both must outlive it.
struct Runtime {
  ThreadPool& pool;
  const kernels::KernelTable& kernels;
};

/// y = x W^T over all threads, split by outputs, so the result does not depend on their number.
/// x [rows, weight.in]; y [rows, weight.out].
void linear(const Runtime& runtime, const MatrixView& weight, Span2d<const float> x, Span2d<float> y);

}  // namespace tidepool
