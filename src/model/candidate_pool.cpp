#include "model/candidate_pool.h"

#include <algorithm>
#include <limits>

#include "kernels/top_k.h"

namespace tidepool {

int32_t choose_candidate_blocks(const CandidatePoolConfig& config, std::span<const float> scores,
                                std::span<uint32_t> blocks, std::vector<float>& scratch,
                                const kernels::KernelTable& kernels) {
  const auto size = static_cast<size_t>(config.block_size);
  const size_t block_count = (scores.size() + size - 1) / size;
  if (block_count <= static_cast<size_t>(config.blocks_max)) return -1;
  scratch.resize(block_count);
  const std::span<float> maxima(scratch);
  for (size_t block = 0; block < block_count; ++block) {
    const std::span<const float> members = scores.subspan(block * size, std::min(size, scores.size() - block * size));
    maxima[block] = -std::numeric_limits<float>::infinity();
    for (const float score : members)
      maxima[block] = score > maxima[block] ? score : maxima[block];  // a NaN is no maximum
  }
  maxima.back() = std::numeric_limits<float>::infinity();
  return static_cast<int32_t>(kernels::select_top_k(maxima, static_cast<size_t>(config.blocks_max), blocks, kernels));
}

}  // namespace tidepool
