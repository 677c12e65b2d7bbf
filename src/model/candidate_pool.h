#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_table.h"

namespace tidepool {

/// Hierarchical candidate pool, level one: the best blocks of `block_size` consecutive entries by their best score, the
/// block that holds the newest visible entry always among them; ties to the lower block. (docs/model.md 2.5)
struct CandidatePoolConfig {
  int64_t block_size = 0;
  int64_t blocks_max = 0;
};

/// Chooses from scores [visible] of the visible entries. Writes block numbers in ascending order and returns how many,
/// or -1 when every visible entry fits into the pool (then nothing is written). Blocks whose scores are all -inf or NaN
/// are left out, and a NaN among other scores counts for nothing. `scratch` is grown as needed; `kernels` look the
/// maxima through, and the answer does not depend on them.
[[nodiscard]] int32_t choose_candidate_blocks(const CandidatePoolConfig& config, std::span<const float> scores,
                                              std::span<uint32_t> blocks, std::vector<float>& scratch,
                                              const kernels::KernelTable& kernels = kernels::reference_kernels());

}  // namespace tidepool
