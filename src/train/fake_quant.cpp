#include "train/fake_quant.h"

#include <cmath>

#include "base/check.h"
#include "formats/fp4.h"
#include "formats/fp8.h"
#include "train/linear.h"
#include "train/number_grid.h"
#include "train/row_blocks.h"
#include "train/weight_packer.h"

namespace tidepool {

namespace {

/// Floors of a block's largest magnitude, as formats/row_format.cpp has them. (docs/numerics.md)
constexpr float kFp8AmaxFloor = 1e-4F;
constexpr float kFp4Block16AmaxFloor = 6.0F * 0x1p-9F;
constexpr float kFp4Block32AmaxFloor = 6.0F * 0x1p-126F;

size_t block_of(RowFormat format) {
  return format == RowFormat::kFp4Block16 ? 16 : 32;
}

float block_scale(RowFormat format, float largest) {
  if (std::isnan(largest)) return largest;
  switch (format) {
    case RowFormat::kFp8Block32: return to_float(ceil_to_e8m0(std::max(largest, kFp8AmaxFloor) / kE4m3Max));
    case RowFormat::kFp4Block16: return to_float(to_e4m3(std::max(largest, kFp4Block16AmaxFloor) / kE2m1Max));
    case RowFormat::kFp4Block32: return to_float(ceil_to_e8m0(std::max(largest, kFp4Block32AmaxFloor) / kE2m1Max));
    case RowFormat::kFloat32: break;
  }
  return 1;
}

/// One block; returns its largest value that no code is clipped for.
float round_block(RowFormat format, std::span<float> values) {
  const float scale = block_scale(format, largest_magnitude(values));
  if (format == RowFormat::kFp8Block32) {
    for (float& value : values)
      value = round_to_e4m3(value / scale) * scale;
    return kE4m3Max * scale;
  }
  for (float& value : values)
    value = round_to_e2m1(value / scale) * scale;
  return kE2m1Max * scale;
}

template <typename Real>
void round_row(RowFormat format, std::span<const Real> from, std::span<Real> to, std::span<float> limits) {
  const size_t block = block_of(format);
  for (size_t begin = 0; begin < from.size(); begin += block) {
    float values[32];
    std::ranges::transform(from.subspan(begin, block), values, [](Real value) { return static_cast<float>(value); });
    limits[begin / block] = round_block(format, {values, block});
    std::ranges::copy_n(values, static_cast<std::ptrdiff_t>(block), to.begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

/// dx += dy where x was within the limits of its block.
template <typename Real>
void pass_unclipped(std::span<const Real> x, std::span<const float> limits, size_t block, std::span<const Real> dy,
                    std::span<Real> dx) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::fabs(x[i]) <= static_cast<Real>(limits[i / block])) dx[i] += dy[i];
  }
}

bool is_rounded(const Qat& qat, WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp4Block32: return qat.experts;
    case WeightFormat::kFp8Tile32:
    case WeightFormat::kFp8Row32:
    case WeightFormat::kBf16: return qat.weights;
    case WeightFormat::kFloat32: return false;
  }
  return false;
}

}  // namespace

template <typename Real>
Value<Real> quantise_rows(Tape<Real>& tape, const Value<Real>& x, RowFormat format) {
  if (format == RowFormat::kFloat32) return x;
  const size_t block = block_of(format);
  TIDEPOOL_CHECK(x.cols() % block == 0, "rows that are no whole blocks");
  // A scale that is rounded up clips nothing, so the gradient of what is rounded is that of x itself.
  const bool may_clip = format == RowFormat::kFp4Block16;
  Value<Real> y = may_clip ? tape.make(x.rows(), x.cols()) : tape.make_constant(x.rows(), x.cols());
  if (!may_clip) y.grad = x.grad;
  const size_t blocks = x.cols() / block;
  const std::span<float> limits = tape.template keep<float>(x.rows() * blocks);
  constexpr size_t kOperations = 8;
  for_row_blocks(tape, x.rows(), kOperations * x.cols(), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      round_row<Real>(format, x.data.row(row), y.data.row(row), limits.subspan(row * blocks, blocks));
  });
  if (!may_clip || !x.wants_grad()) return y;
  tape.on_backward([&tape, x, y, limits, block, blocks] {
    for_row_blocks(tape, x.rows(), x.cols(), [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row)
        pass_unclipped<Real>(x.data.row(row), limits.subspan(row * blocks, blocks), block, y.grad.row(row),
                             x.grad.row(row));
    });
  });
  return y;
}

template <typename Real>
Value<Real> quantised(Tape<Real>& tape, const Qat& qat, const Parameter<Real>& parameter) {
  const Value<Real>& master = parameter.value;
  if (!is_rounded(qat, parameter.format)) return master;
  Value<Real> rounded = tape.make_constant(master.rows(), master.cols());
  rounded.grad = master.grad;
  const size_t tile_rows = std::max<size_t>(1, scale_tile(parameter.format).rows);
  const size_t tiles = (master.rows() + tile_rows - 1) / tile_rows;
  constexpr size_t kOperations = 4;
  for_row_blocks(tape, tiles, kOperations * tile_rows * master.cols(), [&](size_t begin, size_t end) {
    round_weight<Real>(parameter.format, master.data, rounded.data, begin * tile_rows,
                       std::min(end * tile_rows, master.rows()));
  });
  return rounded;
}

template <typename Real>
Value<Real> linear(Tape<Real>& tape, const Qat& qat, const Value<Real>& x, const Parameter<Real>& weight) {
  const bool has_grid = weight.format == WeightFormat::kFp8Tile32 || weight.format == WeightFormat::kFp4Block32;
  return linear(tape, qat.activations && has_grid ? quantise_activations(tape, x) : x, quantised(tape, qat, weight));
}

#define TIDEPOOL_FOR_REAL(Real)                                                    \
  template Value<Real> quantise_rows(Tape<Real>&, const Value<Real>&, RowFormat);  \
  template Value<Real> quantised(Tape<Real>&, const Qat&, const Parameter<Real>&); \
  template Value<Real> linear(Tape<Real>&, const Qat&, const Value<Real>&, const Parameter<Real>&)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
