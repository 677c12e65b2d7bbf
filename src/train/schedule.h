#pragma once

#include <cstdint>

namespace tidepool {

/// The learning rate over a run: from 0 up to `peak`, flat, down half a cosine to `last`, flat. Steps count from 0.
struct LearningRateSchedule {
  double peak = 0;
  double last = 0;
  int64_t warm_up_end = 0;  ///< the first step at `peak`
  int64_t flat_end = 0;     ///< the last step at `peak`
  int64_t cosine_end = 0;   ///< the first step at `last`

  /// The rate of a step; the first one has 1 / (warm_up_end + 1) of the peak, so that no step is lost.
  [[nodiscard]] double at(int64_t step) const;
};

}  // namespace tidepool
