#include "model/math.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace tidepool {

Math::Math(const Runtime& runtime, Numerics numerics) : runtime_(runtime), numerics_(numerics) {
  if (!runtime.kernels.needs_bf16_inputs || linear_inputs(numerics) == kernels::LinearInputs::kExactInBf16) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("numerics 'hp' keep activations in binary32, and kernels '{}' multiply in bfloat16: choose "
                          "other kernels (--isa), or the official numerics",
                          runtime.kernels.name));
}

void Math::round(std::span<float> values) const {
  if (numerics_.round_to_bf16) runtime_.kernels.round_bf16(values.data(), values.size());
}

void Math::round_rows(Span2d<float> values) const {
  if (!numerics_.round_to_bf16 || values.rows == 0 || values.cols == 0) return;
  constexpr size_t kPiece = 8192;  // values: a few microseconds of work, more than handing them out takes
  const size_t width = std::min(values.cols, kPiece);
  const size_t height = kPiece / width;
  const size_t across = (values.cols + width - 1) / width;
  const size_t down = (values.rows + height - 1) / height;
  for_rows(across * down, [&](size_t piece, size_t) {
    const size_t col = piece % across * width;
    const size_t first = piece / across * height;
    for (size_t row = first; row < std::min(first + height, values.rows); ++row)
      round(values.row(row).subspan(col, std::min(width, values.cols - col)));
  });
}

void Math::quantise(std::span<float> values) const {
  if (numerics_.quantise_activations) runtime_.kernels.quantise_fp8(values.data(), values.size());
}

void Math::quantise_rows(Span2d<float> values) const {
  if (!numerics_.quantise_activations) return;
  for_rows(values.rows, [&](size_t row, size_t) { quantise(values.row(row)); });
}

void Math::quantise_rows(Span2d<const float> values, Span2d<float> on_grid) const {
  for_rows(values.rows, [&](size_t row, size_t) {
    std::ranges::copy(values.row(row), on_grid.row(row).begin());
    quantise(on_grid.row(row));
  });
}

void Math::linear_unrounded(const MatrixView& weight, Span2d<const float> x, Span2d<float> y) const {
  tidepool::linear(runtime_, weight, x, y);
}

void Math::linear(const MatrixView& weight, Span2d<const float> x, Span2d<float> y) const {
  linear_unrounded(weight, x, y);
  round_rows(y);
}

void Math::linear_all(std::span<const LinearJob> jobs) const {
  tidepool::linear_all(runtime_, jobs);
  for (const LinearJob& job : jobs)
    round_rows(job.y);
}

void Math::rms_norm_rows(Span2d<const float> x, const Bf16* weight, float eps, Span2d<float> y) const {
  for_rows(x.rows, [&](size_t row, size_t) {
    runtime_.kernels.rms_norm(x.row(row).data(), weight, x.cols, eps, y.row(row).data());
    round(y.row(row));
  });
}

void Math::for_rows(size_t rows, const std::function<void(size_t row, size_t worker)>& body) const {
  runtime_.pool.run(rows, body);
}

}  // namespace tidepool
