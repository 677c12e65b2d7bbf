#include "engine/sampler_random.h"

namespace tidepool {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  // Multipliers and key increments of the published generator.
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kIncrement0 = 0x9E3779B9;
  constexpr uint32_t kIncrement1 = 0xBB67AE85;
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32U) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32U) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kIncrement0;
    key[1] += kIncrement1;
  }
  return counter;
}

double random_unit(uint64_t seed, uint64_t index, RandomUse use) {
  const std::array<uint32_t, 4> bits =
      philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32U), static_cast<uint32_t>(use), 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32U)});
  const uint64_t word = (uint64_t{bits[1]} << 32U) | bits[0];
  return static_cast<double>(word >> 11U) * 0x1p-53;
}

}  // namespace tidepool
