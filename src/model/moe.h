#pragma once

#include <cstdint>
#include <span>

#include "model/forward_pass.h"
#include "model/image_fault.h"
#include "model/math.h"
#include "model/weights.h"

namespace tidepool {

/// Mixture of experts: a router, routed experts of which each row uses a few, and a shared one. (docs/model.md 2.7)
struct MoeConfig {
  size_t experts_per_token = 0;
  bool norm_topk_prob = true;       ///< weights of the chosen experts add up to 1 before scaling
  float routed_scaling_factor = 1;  ///< of the weights
  float swiglu_limit = 0;           ///< clamp of gate and up; 0 for none
  ImageFault image_fault = ImageFault::kNone;
};

/// Chooses experts for one row: the highest score + bias (ties to the lower number; NaN is below every number), weights
/// from the unbiased scores, normalised over the chosen ones where configured and scaled. `chosen` and `weights` [k]
/// come out by falling score + bias. Returns the gap between the last chosen and the best left out (+inf when none is).
float route_row(const MoeConfig& config, std::span<const float> scores, const float* bias, std::span<int32_t> chosen,
                std::span<float> weights);

/// score = sqrt(softplus(logit)), in place.
void router_scores(std::span<float> logits);

/// y = sum over the chosen experts + the shared expert, of each row of x [rows, d] (the normalised input). y may not be
/// x.
void mixture_of_experts(const Math& math, const MoeConfig& config, const MoeWeights& weights, size_t layer,
                        const ForwardPass& pass, Span2d<const float> x, Span2d<float> y);

}  // namespace tidepool
