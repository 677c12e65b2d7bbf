#pragma once

#include <array>
#include <cstdint>

namespace tidepool {

/// Philox4x32 with 10 rounds, a counter-based generator: 128 random bits that depend on counter and key alone. (Salmon,
/// Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011)
[[nodiscard]] std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// What a random number decides; the numbers of one use are independent of those of the others.
enum class RandomUse : uint32_t {
  kToken = 0,        ///< which token is taken
  kDraft = 1,        ///< which token is drafted
  kDraftStands = 2,  ///< whether a drafted token is taken
};

/// A number in [0, 1) with 53 random bits: number `index` of the stream that `seed` and `use` name. It has no state, so
/// a token drawn again after a rollback, or on another machine, gets the same number.
[[nodiscard]] double random_unit(uint64_t seed, uint64_t index, RandomUse use = RandomUse::kToken);

}  // namespace tidepool
