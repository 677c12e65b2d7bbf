#include "session/repetition_detector.h"

#include <algorithm>

namespace tidepool {

void RepetitionDetector::note_last(std::span<const int32_t> ids) {
  repeated_ = 0;
  const size_t periods = std::min(kPeriodMax, ids.size() - 1);
  for (size_t period = 1; period <= periods; ++period) {
    int64_t& run = runs_[period - 1];
    run = ids[ids.size() - 1 - period] == ids.back() ? run + 1 : 0;
    if (run >= kRoundsMin * static_cast<int64_t>(period)) repeated_ = std::max(repeated_, run);
  }
}

}  // namespace tidepool
