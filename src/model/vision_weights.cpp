#include "model/vision_weights.h"

#include <fmt/format.h>

#include <string>

#include "model/weights.h"

namespace tidepool {
namespace {

BiasedLinear biased(const Checkpoint& checkpoint, const std::string& name) {
  return {checkpoint.matrix(name), bf16_vector(checkpoint, name + ".bias")};
}

}  // namespace

VisionWeights bind_vision_weights(const Checkpoint& checkpoint) {
  VisionWeights weights;
  weights.patch_embed = biased(checkpoint, "vision.patch_embed.proj");
  for (int64_t i = 0; i < checkpoint.config().vision->num_hidden_layers; ++i) {
    const std::string block = fmt::format("vision.blocks.{}.", i);
    weights.blocks.push_back({.norm1 = bf16_vector(checkpoint, block + "norm1.weight"),
                              .wqkv = biased(checkpoint, block + "attn.wqkv"),
                              .wo = biased(checkpoint, block + "attn.wo"),
                              .norm2 = bf16_vector(checkpoint, block + "norm2.weight"),
                              .w1 = checkpoint.matrix(block + "mlp.w1"),
                              .w2 = checkpoint.matrix(block + "mlp.w2")});
  }
  weights.norm = bf16_vector(checkpoint, "vision.norm.weight");
  weights.aligner_w1 = biased(checkpoint, "aligner.w1");
  weights.aligner_w2 = biased(checkpoint, "aligner.w2");
  weights.start = bf16_vector(checkpoint, "image_start");
  weights.newline = bf16_vector(checkpoint, "image_newline");
  weights.end = bf16_vector(checkpoint, "image_end");
  return weights;
}

}  // namespace tidepool
