#include "model/draft_head.h"

#include <fmt/format.h>

#include "base/check.h"

namespace tidepool {

DraftHead make_draft_head(const Checkpoint& checkpoint, const LayerTable& table, DraftFault fault) {
  const ModelConfig& config = checkpoint.config();
  TIDEPOOL_CHECK(config.dspark.has_value(), "the checkpoint has a draft head");
  const DsparkConfig& dspark = *config.dspark;
  DraftHead head;
  head.moe = {static_cast<size_t>(dspark.num_experts_per_tok), config.norm_topk_prob,
              static_cast<float>(config.routed_scaling_factor), static_cast<float>(config.swiglu_limit)};
  head.block = static_cast<size_t>(dspark.block_size);
  head.noise_id = static_cast<int32_t>(dspark.noise_token_id);
  if (fault == DraftFault::kBackboneExperts)
    head.moe.experts_per_token = static_cast<size_t>(config.num_experts_per_tok);
  if (fault == DraftFault::kPaddingAsNoise) head.noise_id = static_cast<int32_t>(config.pad_token_id);
  const auto count = static_cast<size_t>(dspark.num_layers);
  for (size_t stage = 0; stage < count; ++stage) {
    LayerPlan plan;
    plan.index = table.layers.size() + stage;
    plan.mode = LayerMode::kDraft;
    plan.is_decoder = true;
    head.weights.stages.push_back(
        bind_layer(checkpoint, fmt::format("mtp.{}.", stage), plan, static_cast<size_t>(dspark.n_routed_experts)));
    // Drafts are of text, whatever stands before them.
    head.weights.stages.back().moe.bias_vl = nullptr;
    head.stages.push_back(plan);
  }
  const std::string last = fmt::format("mtp.{}.", count - 1);
  head.weights.main_proj = checkpoint.matrix("mtp.0.main_proj");
  head.weights.main_norm = bf16_vector(checkpoint, "mtp.0.main_norm.weight");
  head.weights.norm = bf16_vector(checkpoint, last + "norm.weight");
  head.weights.markov_embed = checkpoint.matrix(last + "markov_head.embed");
  head.weights.markov_head = checkpoint.matrix(last + "markov_head.head");
  head.weights.confidence = checkpoint.matrix(last + "confidence_head.proj");
  return head;
}

}  // namespace tidepool
