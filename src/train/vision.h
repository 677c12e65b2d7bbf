#pragma once

#include <span>
#include <vector>

#include "image/plan.h"
#include "train/fake_quant.h"
#include "train/parameter_set.h"

namespace tidepool {

/// y = W x + bias.
template <typename Real>
struct BiasedParameters {
  const Parameter<Real>* weight = nullptr;  ///< [out, in]
  const Parameter<Real>* bias = nullptr;    ///< [1, out]
};

/// One block of the vision tower, d its width.
template <typename Real>
struct VisionBlockParameters {
  const Parameter<Real>* norm1 = nullptr;
  BiasedParameters<Real> wqkv;  ///< [3 d, d]: queries of all heads, then keys, then values
  BiasedParameters<Real> wo;
  const Parameter<Real>* norm2 = nullptr;
  const Parameter<Real>* w1 = nullptr;  ///< [2 inner, d]: gate, then up
  const Parameter<Real>* w2 = nullptr;  ///< [d, inner]
};

/// The vision tower, the aligner behind it, and the learned embeddings of a span's delimiters. (docs/model.md 4)
template <typename Real>
struct VisionParameters {
  VisionConfig config;
  BiasedParameters<Real> patch_embed;
  std::vector<VisionBlockParameters<Real>> blocks;
  const Parameter<Real>* norm = nullptr;
  BiasedParameters<Real> aligner_w1;
  BiasedParameters<Real> aligner_w2;
  const Parameter<Real>* start = nullptr;
  const Parameter<Real>* newline = nullptr;
  const Parameter<Real>* end = nullptr;
};

/// Finds them. The config has a vision part.
template <typename Real>
[[nodiscard]] VisionParameters<Real> bind_vision(const ParameterSet<Real>& parameters, const ModelConfig& config);

/// Whether a parameter, by its name, is one of them.
[[nodiscard]] bool is_vision_parameter(std::string_view name);

/// The embeddings of all positions of the pictures' spans, one picture after the other: what encode_images() gives, in
/// binary32 throughout but for the weights, which are rounded where `qat` says so. [positions, hidden] (docs/model.md
/// 4.2, 4.3) The pictures need not outlive the call.
template <typename Real>
[[nodiscard]] Value<Real> encode_pictures(Tape<Real>& tape, const Qat& qat, const VisionParameters<Real>& parameters,
                                          std::span<const PreparedImage* const> pictures);

#define TIDEPOOL_FOR_REAL(Real)                                                                       \
  extern template VisionParameters<Real> bind_vision(const ParameterSet<Real>&, const ModelConfig&);  \
  extern template Value<Real> encode_pictures(Tape<Real>&, const Qat&, const VisionParameters<Real>&, \
                                              std::span<const PreparedImage* const>)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
