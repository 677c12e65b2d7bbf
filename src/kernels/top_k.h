#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/kernel_table.h"

namespace tidepool::kernels {

/// The indices of the `k` largest scores, exactly, in ascending order; of equal scores the lowest indices are taken.
/// -inf and NaN are never selected, so fewer than k come back where fewer are selectable; the return value says how
/// many were written. indices holds at least min(k, scores.size()) values. 0 and -0 are equal. No allocation; 64 KiB of
/// stack. Up to 2048 of many scores take about as long as reading them, in whatever order they come (unless chosen
/// against the sample that is looked at first); more than that some ten times as long.
/// `scores` may be up to 2^32 - 1 long. Thread-safe. `kernels` look the scores through; the answer does not depend on
/// them.
[[nodiscard]] size_t select_top_k(std::span<const float> scores, size_t k, std::span<uint32_t> indices,
                                  const KernelTable& kernels = reference_kernels());

/// A choice that threads make together.
struct SharedTopK {
  std::span<const float> scores;
  size_t k = 0;
  std::span<uint32_t> indices;  ///< as select_top_k has it
  std::span<uint32_t> places;   ///< scratch, shared_top_k_scratch()
  std::span<float> values;      ///< scratch, the same
};

/// What each part of the scores may hand over, times k.
inline constexpr size_t kSharedRoom = 3;
[[nodiscard]] size_t shared_top_k_scratch(size_t threads, size_t k);

/// The same answer, by all threads of `pool` where there is enough to look through: they look for what may be among the
/// largest in parts of the scores, and the largest of these are those of all. No allocation; the same stack for each.
[[nodiscard]] size_t select_top_k(ThreadPool& pool, const SharedTopK& choice, const KernelTable& kernels);

}  // namespace tidepool::kernels
