#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "image/plan.h"

namespace tidepool {

/// A picture among rows: its span, `plan.tokens()` long, takes those from `begin` on, in the place of their ids.
struct SamplePicture {
  size_t begin = 0;
  std::shared_ptr<const PreparedImage> image;
};

/// One text to learn from: a sequence of its own, which attends to nothing outside itself and starts at position 0.
struct Sample {
  std::vector<int32_t> ids;
  /// Weight of predicting ids[i + 1] behind ids[..i]; the last one counts nothing. 0 for what is given (prompts), 1 for
  /// what is to be learnt.
  std::vector<float> weights;
  std::vector<SamplePicture> pictures{};  ///< in order; what they show is given, never learnt
  size_t part = 0;                        ///< of a mixture: where it comes from
};

/// Several samples, row after row: what one training step reads.
struct TokenBatch {
  /// A sample's rows [begin, begin + count). Its decoder runs over the rows from `decoder_begin` (counted from `begin`)
  /// on, whose window does not reach before it: what bounded replay does with a prompt. 0 runs it over all.
  struct Segment {
    size_t begin = 0;
    size_t count = 0;
    size_t decoder_begin = 0;
    size_t part = 0;
  };
  std::vector<int32_t> ids;      ///< one per row
  std::vector<int32_t> targets;  ///< the next id of the same sample
  std::vector<float> weights;    ///< of the loss of each row; 0 at a sample's last row
  std::vector<Segment> segments;
  std::vector<SamplePicture> pictures;  ///< of all samples; `begin` counts the batch's rows

  [[nodiscard]] size_t rows() const { return ids.size(); }
};

}  // namespace tidepool
