#include "train/random_stream.h"

#include <bit>

namespace tidepool {
uint64_t stable_hash(std::string_view bytes) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char byte : bytes)
    hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001B3;
  return split_mix(hash);
}

uint64_t shuffled_index(uint64_t seed, uint64_t round, uint64_t index, uint64_t count) {
  const uint64_t half_bits = (static_cast<uint64_t>(std::bit_width(count - 1)) + 1) / 2;
  if (half_bits == 0) return 0;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  const uint64_t key = split_mix(split_mix(seed + kSplitMixStep) + round);
  do {
    uint64_t left = index >> half_bits;
    uint64_t right = index & mask;
    for (uint64_t step = 0; step < 4; ++step) {
      const uint64_t next = left ^ (split_mix(key + step * kSplitMixStep + right) & mask);
      left = right;
      right = next;
    }
    index = (left << half_bits) | right;
  } while (index >= count);
  return index;
}

RandomStream::RandomStream(uint64_t seed, std::string_view name, uint64_t index)
    : state_(split_mix(split_mix(seed + kSplitMixStep) ^ stable_hash(name)) + split_mix(index + kSplitMixStep)) {}

uint64_t RandomStream::next() {
  state_ += kSplitMixStep;
  return split_mix(state_);
}

uint64_t RandomStream::below(uint64_t count) {
  // The high half of a 128-bit product, in 32-bit steps: [0, 2^64) scaled to [0, count).
  const uint64_t bits = next();
  const uint64_t low = (bits & 0xFFFFFFFF) * (count & 0xFFFFFFFF);
  const uint64_t cross = (bits >> 32) * (count & 0xFFFFFFFF) + (low >> 32);
  const uint64_t other = (bits & 0xFFFFFFFF) * (count >> 32) + (cross & 0xFFFFFFFF);
  return (bits >> 32) * (count >> 32) + (cross >> 32) + (other >> 32);
}

int64_t RandomStream::between(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
}

}  // namespace tidepool
