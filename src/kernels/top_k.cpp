#include "kernels/top_k.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace tidepool::kernels {

size_t select_top_k(std::span<const float> scores, size_t k, std::span<int32_t> chosen,
                    std::span<float> scratch) noexcept {
  // Only what can be chosen: NaN compares false with everything, so it stays out too.
  size_t candidates = 0;
  for (const float score : scores) {
    if (score > -std::numeric_limits<float>::infinity()) scratch[candidates++] = score;
  }
  k = std::min(k, candidates);
  if (k == 0) return 0;
  const auto begin = scratch.begin();
  std::nth_element(begin, begin + static_cast<std::ptrdiff_t>(k - 1), begin + static_cast<std::ptrdiff_t>(candidates),
                   std::greater<>());
  const float threshold = scratch[k - 1];
  // nth_element leaves the k largest in front; those above the threshold are all in, the rest are ties at it.
  size_t ties_left = 0;
  for (size_t i = 0; i < k; ++i)
    ties_left += scratch[i] == threshold ? 1 : 0;
  size_t count = 0;
  for (size_t i = 0; i < scores.size() && count < k; ++i) {
    const bool is_tie = scores[i] == threshold;
    if (!(scores[i] > threshold) && !(is_tie && ties_left > 0)) continue;
    if (is_tie) --ties_left;
    chosen[count++] = static_cast<int32_t>(i);
  }
  return count;
}

}  // namespace tidepool::kernels
