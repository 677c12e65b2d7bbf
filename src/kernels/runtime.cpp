#include "kernels/runtime.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace tidepool {
namespace {

using LinearKernel = void (*)(const kernels::LinearArgs&) noexcept;

LinearKernel kernel_for(const kernels::KernelTable& table, MatrixFormat format) {
  switch (format) {
    case MatrixFormat::kFp8Tile32: return table.linear_fp8;
    case MatrixFormat::kFp4Block32: return table.linear_fp4;
    case MatrixFormat::kBf16: return table.linear_bf16;
    case MatrixFormat::kFloat32: return table.linear_f32;
  }
  TIDEPOOL_CHECK(false, "unknown matrix format");
  return nullptr;
}

/// Outputs per task. A multiple of 32, so that tasks begin on an FP8 scale tile and never share a cache line of y; of 8
/// for small matrices in other formats, or the hyper-connections' 24 outputs would be one thread's. Four tasks per
/// thread even out threads of unequal speed; fewer multiplications than kTaskMin (some 10 us on one core) are not worth
/// handing over.
size_t outputs_per_task(size_t threads, size_t rows, const MatrixView& weight) {
  const bool is_small = weight.format != MatrixFormat::kFp8Tile32 && weight.out < 64 * threads;
  const size_t unit = is_small ? 8 : 32;
  constexpr size_t kTaskMin = 100'000;
  const size_t for_balance = (weight.out + 4 * threads - 1) / (4 * threads);
  const size_t for_size = kTaskMin / std::max<size_t>(1, rows * weight.in);
  return (std::max({for_balance, for_size, size_t{1}}) + unit - 1) / unit * unit;
}

/// A part of a job's outputs, or of its rows.
struct Task {
  size_t job;
  size_t begin;
  size_t end;
};

}  // namespace

PackedInputs::PackedInputs(const Runtime& runtime, std::span<const LinearJob> jobs, Arena* arena)
    : offset_(jobs.size(), kNone) {
  if (runtime.kernels.packed_bytes == nullptr) return;
  constexpr size_t kRowsPerTask = 16;
  constexpr size_t kAlignment = Buffer<std::byte>::kAlignment;
  std::vector<Task> tasks;
  size_t bytes_in_all = 0;
  for (size_t j = 0; j < jobs.size(); ++j) {
    const LinearJob& job = jobs[j];
    const size_t bytes = runtime.kernels.packed_bytes(job.weight.format, job.x.rows, job.weight.in);
    if (bytes == 0) continue;
    offset_[j] = bytes_in_all;
    bytes_in_all += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    for (size_t begin = 0; begin < job.x.rows; begin += kRowsPerTask)
      tasks.push_back({j, begin, std::min(begin + kRowsPerTask, job.x.rows)});
  }
  if (tasks.empty()) return;
  if (arena == nullptr) own_memory_ = Buffer<std::byte>::uninitialised(bytes_in_all);
  memory_ = arena == nullptr ? own_memory_.data() : arena->take<std::byte>(bytes_in_all).data();
  runtime.pool.run(tasks.size(), [&](size_t index, size_t /*worker*/) {
    const Task& task = tasks[index];
    const LinearJob& job = jobs[task.job];
    runtime.kernels.pack_inputs({.format = job.weight.format,
                                 .x = job.x.data,
                                 .x_stride = job.x.stride,
                                 .in = job.weight.in,
                                 .rows = job.x.rows,
                                 .begin = task.begin,
                                 .end = task.end,
                                 .packed = memory_ + offset_[task.job]});
  });
}

void linear_range(const kernels::KernelTable& kernels, const LinearJob& job, size_t out_begin, size_t out_end) {
  kernel_for(kernels, job.weight.format)({.weight = job.weight,
                                          .x = job.x.data,
                                          .x_stride = job.x.stride,
                                          .rows = job.x.rows,
                                          .y = job.y.data,
                                          .y_stride = job.y.stride,
                                          .out_begin = out_begin,
                                          .out_end = out_end,
                                          .packed_x = job.packed_x});
}

void linear_all(const Runtime& runtime, std::span<const LinearJob> jobs) {
  std::vector<Task> tasks;
  for (size_t j = 0; j < jobs.size(); ++j) {
    const LinearJob& job = jobs[j];
    TIDEPOOL_CHECK(job.x.cols == job.weight.in && job.y.cols == job.weight.out && job.x.rows == job.y.rows,
                   "linear: shapes do not fit");
    if (job.x.rows == 0) continue;
    const size_t step = outputs_per_task(runtime.pool.thread_count(), job.x.rows, job.weight);
    for (size_t begin = 0; begin < job.weight.out; begin += step) {
      tasks.push_back({j, begin, std::min(begin + step, job.weight.out)});
    }
  }
  const PackedInputs packed(runtime, jobs);
  runtime.pool.run(tasks.size(), [&](size_t index, size_t /*worker*/) {
    const Task& task = tasks[index];
    LinearJob job = jobs[task.job];
    job.packed_x = packed.of(task.job);
    linear_range(runtime.kernels, job, task.begin, task.end);
  });
}

void linear(const Runtime& runtime, const MatrixView& weight, Span2d<const float> x, Span2d<float> y) {
  const LinearJob job{weight, x, y};
  linear_all(runtime, {&job, 1});
}

}  // namespace tidepool
