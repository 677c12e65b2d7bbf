#include "train/schedule.h"

#include <cmath>
#include <numbers>

namespace tidepool {

double LearningRateSchedule::at(int64_t step) const {
  if (step < warm_up_end) return peak * static_cast<double>(step + 1) / static_cast<double>(warm_up_end + 1);
  if (step <= flat_end) return peak;
  if (step >= cosine_end) return last;
  const double way = static_cast<double>(step - flat_end) / static_cast<double>(cosine_end - flat_end);
  return last + (peak - last) * (1 + std::cos(std::numbers::pi * way)) / 2;
}

}  // namespace tidepool
