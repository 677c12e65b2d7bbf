#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/buffer.h"
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
  const std::byte* packed_x = nullptr;  ///< x by PackedInputs, or null
};

/// All jobs in one go over all threads, split by outputs, so results do not depend on the threads' number. Jobs may
/// differ in every shape; none may read what another writes.
void linear_all(const Runtime& runtime, std::span<const LinearJob> jobs);

/// One of them.
void linear(const Runtime& runtime, const MatrixView& weight, Span2d<const float> x, Span2d<float> y);

/// The inputs of jobs with many rows, put in their kernel's order once for all ranges of outputs. They must stay as
/// they are until the last of these is done.
class PackedInputs {
 public:
  /// Packs them over all threads, into memory of `arena` or, without one, its own.
  PackedInputs(const Runtime& runtime, std::span<const LinearJob> jobs, Arena* arena = nullptr);

  /// LinearJob::packed_x of this job, or of another with the same x and weights of the same format. Null where the
  /// kernel packs by itself.
  [[nodiscard]] const std::byte* of(size_t job) const {
    return offset_[job] == kNone ? nullptr : memory_ + offset_[job];
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;
  std::vector<size_t> offset_;  ///< of each job in the memory, or kNone
  Buffer<std::byte> own_memory_;
  std::byte* memory_ = nullptr;
};

/// Outputs [out_begin, out_end) of one job, on the calling thread. For FP8 weights out_begin is a multiple of 32.
void linear_range(const kernels::KernelTable& kernels, const LinearJob& job, size_t out_begin, size_t out_end);

}  // namespace tidepool
