#include "kernels/top_k.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

// Two ways to the same answer. Where k is small against the number of scores, a threshold that about six times k
// scores reach is estimated from a sample; one pass then collects what is above it, raising the threshold whenever
// there is no room, and the answer is found among those. When there is no room, the sample was not like the rest
// (scores may be such that the sampled places are low), so another one is taken elsewhere. Where fewer than k were
// above the estimate, the pass is made again without it. For large k the scores are read three times, with a histogram
// of a part of their bits each. Threads share the first estimate, and each looks through parts of the scores.

namespace tidepool::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Unsigned numbers in the order of the scores. 0 stands for what is never selected.
uint32_t order_key(float score) {
  // Adding +0 turns -0 into +0 and leaves all else.
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0F);
  if (std::isnan(score) || score == kMinusInfinity) return 0;
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
float score_of(uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}

/// The smallest selected key, and how many of the scores that have it are selected.
struct Threshold {
  uint32_t key = 0;
  size_t ties = 0;
};

/// Finds the k-th largest key of `count` that key_of(i) gives, from its upper bits down, 11, 11 and 10 at a time: three
/// passes with a histogram each (8 KiB, in the first cache). There must be at least k keys but 0, k > 0.
template <typename KeyOf>
Threshold find_threshold(size_t count, size_t k, const KeyOf& key_of) {
  struct Digit {
    unsigned shift;
    unsigned bits;
  };
  constexpr std::array<Digit, 3> kDigits = {Digit{21, 11}, Digit{10, 11}, Digit{0, 10}};
  Threshold threshold{.key = 0, .ties = k};
  uint32_t known = 0;  // the bits of the key that are settled
  for (const Digit digit : kDigits) {
    std::array<uint32_t, 2048> histogram{};
    const uint32_t mask = (1U << digit.bits) - 1;
    for (size_t i = 0; i < count; ++i) {
      const uint32_t key = key_of(i);
      if (key != 0 && (key & known) == threshold.key) ++histogram[(key >> digit.shift) & mask];
    }
    uint32_t value = mask;
    while (histogram[value] < threshold.ties)
      threshold.ties -= histogram[value--];
    threshold.key |= value << digit.shift;
    known |= mask << digit.shift;
  }
  return threshold;
}

/// Passes take(i) the places of the selected among `count` keys, in order.
template <typename KeyOf, typename Take>
void take_selected(size_t count, Threshold threshold, const KeyOf& key_of, const Take& take) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t key = key_of(i);
    if (key < threshold.key) continue;
    if (key == threshold.key && threshold.ties == 0) continue;
    if (key == threshold.key) --threshold.ties;
    take(i);
  }
}

constexpr size_t kCandidatesMax = 8192;
/// Scores the threshold is estimated from: one of each of as many equal parts, at places that repeat no pattern.
constexpr size_t kSamples = 2048;
/// How many times k the threshold is aimed at: if the sample is as good as a random one, fewer than k of the scores
/// reach it once in a thousand times (a sum of six exponentials is below a sixth of its mean).
constexpr size_t kAim = 6;
/// Below this the candidates are at least four times k, so that cutting them back to k is rare.
constexpr size_t kSmallKMax = kCandidatesMax / 4;
/// What may still be among the k largest of the scores read so far, in ascending order of index.
struct Candidates {
  size_t k;
  float above;  ///< only scores above this can still be selected
  size_t count = 0;
  std::array<float, kCandidatesMax> score;
  std::array<uint32_t, kCandidatesMax> index;

  Candidates(size_t selected, float threshold) : k(selected), above(threshold) {}

  /// Keeps the k largest. Later scores equal to the least of them would lose to it.
  void cut() {
    const auto key_of = [this](size_t i) { return order_key(score[i]); };
    const Threshold threshold = find_threshold(count, k, key_of);
    size_t kept = 0;
    take_selected(count, threshold, key_of, [&](size_t i) { keep(i, kept++); });
    count = kept;
    above = score_of(threshold.key);
  }
  /// Forgets what is not above `threshold`. If fewer than k are left in the end, it was too high.
  void raise(float threshold) {
    if (threshold <= above) return;
    size_t kept = 0;
    for (size_t i = 0; i < count; ++i) {
      if (score[i] > threshold) keep(i, kept++);
    }
    count = kept;
    above = threshold;
  }

 private:
  void keep(size_t from, size_t to) {
    score[to] = score[from];
    index[to] = index[from];
  }
};

/// Keys of one score of each of kSamples equal parts.
using Sample = std::array<uint32_t, kSamples>;

/// Takes those of parts [begin, end) for sample number `number`.
void take_sample(std::span<const float> scores, uint64_t number, size_t begin, size_t end, Sample& sample) {
  const size_t stride = scores.size() / kSamples;
  for (size_t i = begin; i < end; ++i) {
    // A multiplicative hash of both numbers, its upper bits.
    const uint64_t hash = ((number << 32U | i) + 1) * 0x9e3779b97f4a7c15U >> 32U;
    sample[i] = order_key(scores[i * stride + (hash * stride >> 32U)]);
  }
}

/// A value that about kAim * k of `count` scores are above, by their sample.
float estimate_threshold(const Sample& sample, size_t count, size_t k) {
  const auto selectable = static_cast<size_t>(std::ranges::count_if(sample, [](uint32_t key) { return key != 0; }));
  const size_t rank = std::max(kAim, kAim * k / (count / kSamples) + 1);
  if (rank >= selectable) return kMinusInfinity;
  const Threshold threshold = find_threshold(kSamples, rank, [&](size_t i) { return sample[i]; });
  return std::nextafter(score_of(threshold.key), kMinusInfinity);
}

float estimate_threshold(std::span<const float> scores, size_t k, uint64_t sample_number) {
  Sample sample{};
  take_sample(scores, sample_number, 0, kSamples, sample);
  return estimate_threshold(sample, scores.size(), k);
}

/// Samples taken at most; beyond, each cut alone raises the threshold.
constexpr uint64_t kSamplesMax = 3;

void make_room(std::span<const float> scores, Candidates& candidates, uint64_t& sample_number) {
  candidates.cut();
  if (sample_number < kSamplesMax) candidates.raise(estimate_threshold(scores, candidates.k, sample_number++));
}

void collect(const KernelTable& kernels, std::span<const float> scores, Candidates& candidates) {
  // Without an estimate to begin with none is wanted later.
  uint64_t sample_number = candidates.above == kMinusInfinity ? kSamplesMax : 1;
  size_t begin = 0;
  while (begin < scores.size()) {
    if (candidates.count + kAboveBlock > kCandidatesMax) make_room(scores, candidates, sample_number);
    const Above found = kernels.collect_above({.x = scores.data(),
                                               .begin = begin,
                                               .end = scores.size(),
                                               .above = candidates.above,
                                               .values = candidates.score.data() + candidates.count,
                                               .places = candidates.index.data() + candidates.count,
                                               .room = kCandidatesMax - candidates.count});
    candidates.count += found.count;
    begin = found.next;
  }
}

/// What may be among the k largest of the scores above `above`: where `indices` has no room for more, these k alone.
size_t select_above(const KernelTable& kernels, std::span<const float> scores, float above, size_t k,
                    std::span<uint32_t> indices) {
  Candidates candidates(k, above);
  collect(kernels, scores, candidates);
  if (candidates.count > indices.size()) candidates.cut();
  std::copy_n(candidates.index.begin(), candidates.count, indices.begin());
  return candidates.count;
}

/// The k largest of scores of which `selectable` are none of those never selected.
size_t select_by_histograms(std::span<const float> scores, size_t selectable, size_t k, std::span<uint32_t> indices) {
  const auto key_of = [&](size_t i) { return order_key(scores[i]); };
  // With room for all, every key from 1 on is taken.
  Threshold threshold{.key = 1, .ties = selectable};
  if (k < selectable) threshold = find_threshold(scores.size(), k, key_of);
  size_t written = 0;
  take_selected(scores.size(), threshold, key_of, [&](size_t i) { indices[written++] = static_cast<uint32_t>(i); });
  return written;
}

}  // namespace

size_t select_top_k(std::span<const float> scores, size_t k, std::span<uint32_t> indices, const KernelTable& kernels) {
  TIDEPOOL_CHECK(indices.size() >= std::min(k, scores.size()), "top-k: no room for the indices");
  if (k == 0) return 0;
  if (k <= kSmallKMax && scores.size() >= 2 * kCandidatesMax) {
    const float estimate = estimate_threshold(scores, k, 0);
    const std::span<uint32_t> chosen = indices.first(k);
    const size_t written = select_above(kernels, scores, estimate, k, chosen);
    // Above -inf, fewer than k are all there are.
    if (written == k || estimate == kMinusInfinity) return written;
    return select_above(kernels, scores, kMinusInfinity, k, chosen);
  }
  const auto selectable =
      static_cast<size_t>(std::ranges::count_if(scores, [](float score) { return order_key(score) != 0; }));
  return select_by_histograms(scores, selectable, k, indices);
}

namespace {

/// Parts that each thread finds on average: one that comes late then has less to do.
constexpr size_t kPartsPerThread = 2;
constexpr size_t kPartsMax = 64;

/// The scores [begin, end) of a choice that may be among its k largest, in the scratch of their part. Returns how many.
size_t choose_from_part(const SharedTopK& choice, const KernelTable& kernels, float above, size_t part, size_t begin,
                        size_t end) {
  const size_t room = kSharedRoom * choice.k;
  const std::span<const float> scores = choice.scores.subspan(begin, end - begin);
  const std::span<uint32_t> places = choice.places.subspan(part * room, room);
  const std::span<float> values = choice.values.subspan(part * room, room);
  const size_t count = choice.k <= kSmallKMax ? select_above(kernels, scores, above, choice.k, places)
                                              : select_top_k(scores, choice.k, places, kernels);
  for (size_t i = 0; i < count; ++i) {
    values[i] = scores[places[i]];
    places[i] += static_cast<uint32_t>(begin);
  }
  return count;
}

}  // namespace

size_t shared_top_k_scratch(size_t threads, size_t k) {
  return std::min(kPartsPerThread * threads, kPartsMax) * kSharedRoom * k;
}

size_t select_top_k(ThreadPool& pool, const SharedTopK& choice, const KernelTable& kernels) {
  constexpr size_t kScoresPerPart = 65536;  // some 10 us of reading, many times a hand-off
  const size_t parts =
      std::min({kPartsPerThread * pool.thread_count(), kPartsMax, choice.scores.size() / kScoresPerPart});
  if (pool.thread_count() == 1 || parts < 2 || choice.k == 0)
    return select_top_k(choice.scores, choice.k, choice.indices, kernels);
  TIDEPOOL_CHECK(std::min(choice.places.size(), choice.values.size()) >= parts * kSharedRoom * choice.k,
                 "top-k: no room for what the threads choose");
  const auto choose = [&](float above) {
    std::array<size_t, kPartsMax> counts{};
    pool.run(parts, [&](size_t part, size_t /*worker*/) {
      counts[part] = choose_from_part(choice, kernels, above, part, choice.scores.size() * part / parts,
                                      choice.scores.size() * (part + 1) / parts);
    });
    // Close ranks: ascending, so that of equal scores the lowest place still comes first.
    size_t total = counts[0];
    for (size_t part = 1; part < parts; ++part) {
      const size_t from = part * kSharedRoom * choice.k;
      std::copy_n(choice.places.begin() + static_cast<int64_t>(from), counts[part],
                  choice.places.begin() + static_cast<int64_t>(total));
      std::copy_n(choice.values.begin() + static_cast<int64_t>(from), counts[part],
                  choice.values.begin() + static_cast<int64_t>(total));
      total += counts[part];
    }
    return total;
  };
  float estimate = kMinusInfinity;
  if (choice.k <= kSmallKMax) {
    // Each score of the sample waits for memory, and a thread that had nothing to do meanwhile would fall asleep.
    Sample sample{};
    pool.run(parts, [&](size_t part, size_t /*worker*/) {
      take_sample(choice.scores, 0, kSamples * part / parts, kSamples * (part + 1) / parts, sample);
    });
    estimate = estimate_threshold(sample, choice.scores.size(), choice.k);
  }
  size_t total = choose(estimate);
  if (total < choice.k && estimate != kMinusInfinity) total = choose(kMinusInfinity);
  const size_t written = select_by_histograms(choice.values.first(total), total, choice.k, choice.indices);
  for (uint32_t& index : choice.indices.first(written))
    index = choice.places[index];
  return written;
}

}  // namespace tidepool::kernels
