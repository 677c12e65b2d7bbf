#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tidepool {

/// SplitMix64's step, 2^64 / golden ratio, and its finaliser: each bit of the result depends on all of `value`.
inline constexpr uint64_t kSplitMixStep = 0x9E3779B97F4A7C15;
[[nodiscard]] constexpr uint64_t split_mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

/// Random numbers that depend on what they are for and on nothing else: item `index` of the thing called `name` under
/// `seed`. Two streams of different names or indices are independent, so any item can be made without those before it.
/// SplitMix64. (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name, uint64_t index);

  /// 64 random bits.
  [[nodiscard]] uint64_t next();
  /// Uniform in [0, count); count is above 0. Biased by less than count / 2^64.
  [[nodiscard]] uint64_t below(uint64_t count);
  /// Uniform in [low, high], both included.
  [[nodiscard]] int64_t between(int64_t low, int64_t high);
  /// True with a chance of one in `count`.
  [[nodiscard]] bool one_in(uint64_t count) { return below(count) == 0; }

  template <typename T, size_t kExtent>
  [[nodiscard]] const T& pick(std::span<T, kExtent> choices) {
    return choices[below(choices.size())];
  }

 private:
  uint64_t state_;
};

/// A hash of bytes that never changes, for decisions that must outlive a program: FNV-1a, then mixed.
[[nodiscard]] uint64_t stable_hash(std::string_view bytes);

/// Where `index` of [0, count) comes in the random order that `seed` and `round` name: each place is taken once, and no
/// table is kept. A Feistel network of four rounds over the next power of four, walked until it lands inside. (Black
/// and Rogaway, "Ciphers with arbitrary finite domains", 2002)
[[nodiscard]] uint64_t shuffled_index(uint64_t seed, uint64_t round, uint64_t index, uint64_t count);

}  // namespace tidepool
