#include "kernels/runtime.h"

#include <algorithm>

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

/// Outputs per task. A multiple of 32, so that tasks begin on an FP8 scale tile and never share a cache line of y. Four
/// tasks per thread even out threads of unequal speed; fewer multiplications than kTaskMin (some 10 us on one core) are
/// not worth handing over.
size_t outputs_per_task(size_t threads, size_t rows, const MatrixView& weight) {
  constexpr size_t kStep = 32;
  constexpr size_t kTaskMin = 100'000;
  const size_t for_balance = weight.out / (4 * threads);
  const size_t for_size = kTaskMin / std::max<size_t>(1, rows * weight.in);
  return (std::max(for_balance, for_size) / kStep + 1) * kStep;
}

}  // namespace

void linear(const Runtime& runtime, const MatrixView& weight, Span2d<const float> x, Span2d<float> y) {
  TIDEPOOL_CHECK(x.cols == weight.in && y.cols == weight.out && x.rows == y.rows, "linear: shapes do not fit");
  if (x.rows == 0 || weight.out == 0) return;
  const LinearKernel kernel = kernel_for(runtime.kernels, weight.format);
  const size_t step = outputs_per_task(runtime.pool.thread_count(), x.rows, weight);
  runtime.pool.run((weight.out + step - 1) / step, [&](size_t task, size_t /*worker*/) {
    const size_t begin = task * step;
    kernel({.weight = weight,
            .x = x.data,
            .x_stride = x.stride,
            .rows = x.rows,
            .y = y.data,
            .y_stride = y.stride,
            .out_begin = begin,
            .out_end = std::min(begin + step, weight.out)});
  });
}

}  // namespace tidepool
