#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/moe.h"
#include "train/batch_rows.h"
#include "train/fake_quant.h"

namespace tidepool {

/// One SwiGLU expert: w2 (silu(w1 x) * (w3 x)).
template <typename Real>
struct ExpertParameters {
  const Parameter<Real>* w1 = nullptr;  ///< gate [inner, d]
  const Parameter<Real>* w3 = nullptr;  ///< up [inner, d]
  const Parameter<Real>* w2 = nullptr;  ///< down [d, inner]
};

/// Router and experts of one layer. (docs/model.md 2.7)
template <typename Real>
struct MoeParameters {
  const Parameter<Real>* gate = nullptr;     ///< [experts, d]
  const Parameter<Real>* bias = nullptr;     ///< [1, experts], for text rows; steers selection only
  const Parameter<Real>* bias_vl = nullptr;  ///< the same for image rows; null without vision
  ExpertParameters<Real> shared;
  std::vector<ExpertParameters<Real>> experts;
};

/// Finds them under `prefix` ("layers.3.ffn.", "mtp.0.ffn.").
template <typename Real>
[[nodiscard]] MoeParameters<Real> bind_moe(const ParameterSet<Real>& parameters, const std::string& prefix,
                                           size_t experts);

/// Which rows a MoE runs over, and what it is told of them.
struct MoeRows {
  std::span<const SampleRows> samples;  ///< all rows, sample after sample
  std::span<const uint8_t> is_image;    ///< one per row; empty when all are text
};

/// How often each expert was chosen: what the selection biases are balanced by.
struct ExpertLoads {
  std::vector<int64_t> text;   ///< one per expert
  std::vector<int64_t> image;  ///< of image rows
};

template <typename Real>
struct MoeResult {
  Value<Real> y;
  ExpertLoads loads;
  double balance_loss = 0;  ///< weighted
};

/// How a MoE is computed.
struct MoeTraining {
  MoeConfig config;
  Qat qat;
  /// Factor of the sequence-wise balance loss, whose gradient is added going back (the loss has factor 1). For a sample
  /// of T rows, E experts and k chosen ones it is the sum over experts of f P: f = E / (k T) times how often it was
  /// chosen, P = the mean of its share of all scores. Samples count by their share of all rows.
  double balance_weight = 0;
};

/// y = sum over the chosen experts + the shared expert of each row of x [rows, d], the normalised input.
template <typename Real>
[[nodiscard]] MoeResult<Real> mixture_of_experts(Tape<Real>& tape, const MoeTraining& training,
                                                 const MoeParameters<Real>& parameters, const Value<Real>& x,
                                                 const MoeRows& rows);

#define TIDEPOOL_FOR_REAL(Real)                                                                                   \
  extern template MoeParameters<Real> bind_moe(const ParameterSet<Real>&, const std::string&, size_t);            \
  extern template MoeResult<Real> mixture_of_experts(Tape<Real>&, const MoeTraining&, const MoeParameters<Real>&, \
                                                     const Value<Real>&, const MoeRows&)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
