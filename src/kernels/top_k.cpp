#include "kernels/top_k.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"

namespace tidepool::kernels {
namespace {

/// Unsigned numbers in the order of the scores. 0 stands for what is never selected.
uint32_t order_key(float score) {
  // Adding +0 turns -0 into +0 and leaves all else.
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0F);
  constexpr uint32_t kMinusInfinity = 0xff800000U;
  constexpr uint32_t kInfinity = 0x7f800000U;
  if ((bits & 0x7fffffffU) > kInfinity || bits == kMinusInfinity) return 0;
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// The smallest selected key, and how many of the scores that have it are selected.
struct Threshold {
  uint32_t key = 0;
  size_t ties = 0;
};

/// Finds the k-th largest key from its upper bits down, 11, 11 and 10 at a time: three passes with a histogram each
/// (8 KiB, in the first cache). There must be at least k selectable scores, k > 0.
Threshold find_threshold(std::span<const float> scores, size_t k) {
  struct Digit {
    unsigned shift;
    unsigned bits;
  };
  constexpr std::array<Digit, 3> kDigits = {Digit{21, 11}, Digit{10, 11}, Digit{0, 10}};
  Threshold threshold{.key = 0, .ties = k};
  uint32_t known = 0;  // the bits of the key that are settled
  for (const Digit digit : kDigits) {
    std::array<uint32_t, 2048> count{};
    const uint32_t mask = (1U << digit.bits) - 1;
    for (const float score : scores) {
      const uint32_t key = order_key(score);
      if (key != 0 && (key & known) == threshold.key) ++count[(key >> digit.shift) & mask];
    }
    uint32_t value = mask;
    while (count[value] < threshold.ties)
      threshold.ties -= count[value--];
    threshold.key |= value << digit.shift;
    known |= mask << digit.shift;
  }
  return threshold;
}

}  // namespace

size_t select_top_k(std::span<const float> scores, size_t k, std::span<uint32_t> indices) {
  TIDEPOOL_CHECK(indices.size() >= std::min(k, scores.size()), "top-k: no room for the indices");
  size_t selectable = 0;
  for (const float score : scores)
    selectable += order_key(score) != 0 ? 1 : 0;
  // With room for all, every key from 1 on is taken.
  Threshold threshold{.key = 1, .ties = selectable};
  if (k < selectable) threshold = k == 0 ? Threshold{.key = ~0U, .ties = 0} : find_threshold(scores, k);
  size_t written = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const uint32_t key = order_key(scores[i]);
    if (key < threshold.key) continue;
    if (key == threshold.key && threshold.ties == 0) continue;
    if (key == threshold.key) --threshold.ties;
    indices[written++] = static_cast<uint32_t>(i);
  }
  return written;
}

}  // namespace tidepool::kernels
