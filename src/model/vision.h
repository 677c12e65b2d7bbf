#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "image/plan.h"
#include "model/model.h"

namespace tidepool {

/// How pictures enter this model. Throws Error(kUnsupported) when the checkpoint limits aspect ratios, which none that
/// was released does.
[[nodiscard]] ImagePlanConfig image_plan_config(const VisionConfig& config);

/// What the vision tower makes of one picture: the embedding of every position of its span, delimiters included.
struct VisionFeatures {
  size_t tokens = 0;
  size_t hidden = 0;
  Buffer<float> values;  ///< [tokens, hidden]

  [[nodiscard]] Span2d<const float> rows() const { return {values.data(), tokens, hidden}; }
  [[nodiscard]] size_t bytes() const { return values.size() * sizeof(float); }
};

/// Runs pictures through the vision tower and the aligner. (docs/model.md 4.2) They go in together, as
/// many at a time as the largest single picture has patches; the features of one do not depend on the others. The
/// model has a vision part. Scratch memory, some 200 MB for the largest picture of the released model, lives during the
/// call. `probe` may be null; with one, a single picture: "patches", "vit_embed", "vit_block" of each block, "vit_out"
/// [patches, width] and "aligner_out" [cells, hidden].
[[nodiscard]] std::vector<VisionFeatures> encode_images(const Model& model, const Runtime& runtime,
                                                        std::span<const PreparedImage* const> images,
                                                        Probe* probe = nullptr);

}  // namespace tidepool
