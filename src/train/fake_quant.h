#pragma once

#include "formats/row_format.h"
#include "train/parameter_set.h"
#include "train/tape.h"

namespace tidepool {

/// What a forward pass of training rounds as inference will (quantisation-aware training), each kind by itself. Masters
/// stay unrounded; gradients pass straight through, but for values that a format clips.
struct Qat {
  bool weights = false;      ///< tensors that are released in FP8 and BF16
  bool experts = false;      ///< routed experts, in FP4
  bool activations = false;  ///< inputs of products with FP8 and FP4 weights, in FP8
  bool window = false;       ///< window rows, in FP8
  bool entries = false;      ///< global entries, in FP4 with a scale for 16
  bool index = false;        ///< index queries and keys, in FP4 with a scale for 32
};
inline constexpr Qat kFullQat{true, true, true, true, true, true};

/// Each row of x as packed in `format` and unpacked. Widths are whole blocks of the format.
template <typename Real>
[[nodiscard]] Value<Real> quantise_rows(Tape<Real>& tape, const Value<Real>& x, RowFormat format);

/// Each row on the FP8 activation grid.
template <typename Real>
[[nodiscard]] Value<Real> quantise_activations(Tape<Real>& tape, const Value<Real>& x) {
  return quantise_rows(tape, x, RowFormat::kFp8Block32);
}

/// A parameter's value as the forward pass reads it: rounded to its released format where `qat` says so.
template <typename Real>
[[nodiscard]] Value<Real> quantised(Tape<Real>& tape, const Qat& qat, const Parameter<Real>& parameter);

/// The product with a released weight: x on the activation grid where `qat` and the weight's format say so, and the
/// weight as quantised() gives it.
template <typename Real>
[[nodiscard]] Value<Real> linear(Tape<Real>& tape, const Qat& qat, const Value<Real>& x, const Parameter<Real>& weight);

#define TIDEPOOL_FOR_REAL(Real)                                                           \
  extern template Value<Real> quantise_rows(Tape<Real>&, const Value<Real>&, RowFormat);  \
  extern template Value<Real> quantised(Tape<Real>&, const Qat&, const Parameter<Real>&); \
  extern template Value<Real> linear(Tape<Real>&, const Qat&, const Value<Real>&, const Parameter<Real>&)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
