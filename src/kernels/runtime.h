#pragma once

#include <span>

#include "base/span2d.h"
#include "base/thread_pool.h"
#include "kernels/kernel_table.h"

namespace tidepool {

/// What arithmetic runs on: passed down, never global, so two of them work in one process. Both must outlive it.
struct Runtime {
  ThreadPool& pool;
  const kernels::KernelTable& kernels;
};

/// One product y = x W^T: x [rows, weight.in], y [rows, weight.out].
struct LinearJob {
  MatrixView weight;
  Span2d<const float> x;
  Span2d<float> y;
};

/// All jobs in one go over all threads, split by outputs, so results do not depend on the threads' number. Jobs may
/// differ in every shape; none may read what another writes.
void linear_all(const Runtime& runtime, std::span<const LinearJob> jobs);

/// One of them.
void linear(const Runtime& runtime, const MatrixView& weight, Span2d<const float> x, Span2d<float> y);

/// Outputs [out_begin, out_end) of one job, on the calling thread. For FP8 weights out_begin is a multiple of 32.
void linear_range(const kernels::KernelTable& kernels, const LinearJob& job, size_t out_begin, size_t out_end);

}  // namespace tidepool
