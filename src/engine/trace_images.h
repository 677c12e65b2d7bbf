#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/trace_recorder.h"
#include "formats/safetensors.h"
#include "image/plan.h"
#include "kv/sequence_state.h"
#include "model/model.h"
#include "model/vision.h"

/// The pictures of a trace case.
namespace tidepool {

/// A picture of the case, ready for the vision tower, and where it stands among the tokens.
struct TraceImage {
  int64_t start = 0;  ///< position of the first token of its span
  PreparedImage prepared;
};

/// Reads img0.rgb, img1.rgb, ... and puts them where `token_types` has spans; marks the image positions of `tokens`.
/// Throws Error naming the case where types and pictures do not fit each other or the model.
[[nodiscard]] std::vector<TraceImage> read_trace_images(const SafetensorsFile& test_case, const ModelConfig& config,
                                                        std::span<InputToken> tokens);

/// What the vision tower makes of the pictures of a run; `recorders` (one each) get what they ask for.
class TraceImageRows final : public ImageRowSource {
 public:
  TraceImageRows(const Model& model, const Runtime& runtime, std::span<const TraceImage> images,
                 std::span<TraceRecorder> recorders);
  [[nodiscard]] std::span<const ImageRows> rows(int64_t begin, int64_t end) override;

 private:
  std::vector<VisionFeatures> features_;
  std::vector<ImageRows> rows_;  ///< of features_
};

}  // namespace tidepool
