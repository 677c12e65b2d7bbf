#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/span2d.h"
#include "formats/fp8.h"
#include "train/parameter_set.h"

namespace tidepool {

/// Rows and columns that share a scale.
struct ScaleTile {
  size_t rows = 0;
  size_t cols = 0;
};

/// The tile of a format; none (zeros) where values have no scale.
[[nodiscard]] ScaleTile scale_tile(WeightFormat format);

/// The scale of a tile whose largest magnitude is `largest`: the smallest power of two with which no code saturates.
/// Tiles of zeros, and those too small to matter, get a scale well within the range of every kernel. NaN gives NaN.
[[nodiscard]] E8m0 weight_scale(WeightFormat format, float largest);

/// A tensor as a released file holds it.
struct PackedWeight {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;  ///< E8M0, a row of tiles after the other; empty for formats without
};

/// Rounds to nearest even. Values that a format holds are packed exactly, so that packing, reading and packing again
/// gives the same bytes.
[[nodiscard]] PackedWeight pack_weight(WeightFormat format, Span2d<const float> values);

/// What reading the packed bytes gives, without packing: bit for bit. `out` may be `values`.
template <typename Real>
void round_weight(WeightFormat format, Span2d<const Real> values, Span2d<Real> out, size_t row_begin, size_t row_end);

extern template void round_weight(WeightFormat, Span2d<const float>, Span2d<float>, size_t, size_t);
extern template void round_weight(WeightFormat, Span2d<const double>, Span2d<double>, size_t, size_t);

}  // namespace tidepool
