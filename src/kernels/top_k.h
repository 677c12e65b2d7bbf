#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tidepool::kernels {

/// The `k` largest of `scores`, exactly; ties go to the lowest index. Writes the chosen indices to `chosen` in
/// ascending order and returns how many: fewer than k when fewer scores can be chosen. NaN and -inf are never chosen.
/// Takes time linear in scores.size(). `chosen` holds min(k, scores.size()) values, `scratch` scores.size().
[[nodiscard]] size_t select_top_k(std::span<const float> scores, size_t k, std::span<int32_t> chosen,
                                  std::span<float> scratch) noexcept;

}  // namespace tidepool::kernels
