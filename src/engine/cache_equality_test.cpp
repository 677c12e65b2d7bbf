// What comes back from the cache computes what was never interrupted computes, on the tiny golden model (window 16,
// encoder of 5 layers, decoder of 3).
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "engine/cache_test_support.h"

namespace tidepool {
namespace {

using cache_testing::GoldenEngine;
using cache_testing::joined;
using cache_testing::query_of;
using cache_testing::random_tokens;
using cache_testing::Tokens;

constexpr int64_t kBoundaryMax = 400;
constexpr std::array<int64_t, 6> kSuffixes = {1, 2, 127, 128, 129, 300};

std::vector<int64_t> all_boundaries() {
  std::vector<int64_t> boundaries(kBoundaryMax);
  std::iota(boundaries.begin(), boundaries.end(), 1);
  return boundaries;
}
/// Around everything that has a border: windows of 16, groups of 2, blocks of 128.
const std::vector<int64_t> kSample = {1, 16, 17, 127, 128, 129, 255, 384, 399};

class CacheEquality : public testing::Test {
 protected:
  [[nodiscard]] std::span<const InputToken> prompt(int64_t length) const {
    return std::span(tokens_).first(static_cast<size_t>(length));
  }

  /// The state behind a prompt of each of `lengths` (ascending) with a decoder that reads its last `decoder_rows`
  /// positions, and the last position's logits. Encodes each token once, and the decoder's part for each length.
  template <typename Use>
  void for_prompts(const std::vector<int64_t>& lengths, Replay replay, int64_t decoder_rows, Use use) {
    SequenceState encoded = engine_.model.new_sequence();
    for (const int64_t length : lengths) {
      const int64_t begin = std::max<int64_t>(length - decoder_rows, 0);
      if (begin > encoded.length()) {
        const Arena::Scope scope(engine_.arena);
        const ForwardRequest request{&encoded, prompt(begin).subspan(static_cast<size_t>(encoded.length())), begin, 0};
        (void)forward(engine_.model, engine_.runtime, engine_.arena, {&request, 1});
      }
      SequenceState state = encoded.fork();
      const std::vector<float> logits = engine_.read(state, prompt(length), replay);
      use(length, state, logits);
    }
  }

  void check_snapshots(const std::vector<int64_t>& boundaries) {
    const std::unique_ptr<KvCache> cache = engine_.make_cache();
    for_prompts(boundaries, Replay::kBounded, 16, [&](int64_t p, SequenceState& live, const std::vector<float>&) {
      cache->snapshot(live, {}, "", nullptr);
      for (const int64_t suffix : kSuffixes) {
        KvCache::Resumed warm = cache->resume(query_of(prompt(p + suffix)));
        ASSERT_EQ(warm.report.hit_tokens, p);
        ASSERT_EQ(warm.report.tier, CacheTier::kSnapshotRam);
        ASSERT_TRUE(warm.report.is_exact);
        ASSERT_TRUE(same_state(warm.state, live)) << p;
        SequenceState never_stopped = live.fork();
        const std::vector<float> expected = engine_.read(never_stopped, prompt(p + suffix));
        ASSERT_EQ(engine_.read(warm.state, prompt(p + suffix)), expected) << p << " + " << suffix;
        ASSERT_TRUE(same_state(warm.state, never_stopped)) << p << " + " << suffix;
      }
    });
  }

  /// A hit depends on the known blocks alone, so each pair of blocks and prompt length counts once.
  void check_exact_replay(const std::vector<int64_t>& boundaries) {
    std::map<int64_t, std::vector<int64_t>> blocks_of;  // by the prompt's length
    for (const int64_t p : boundaries) {
      for (const int64_t suffix : kSuffixes) {
        std::vector<int64_t>& known = blocks_of[p + suffix];
        if (std::ranges::find(known, p / 128) == known.end()) known.push_back(p / 128);
      }
    }
    std::vector<std::unique_ptr<KvCache>> caches;
    for (int64_t blocks = 0; blocks <= kBoundaryMax / 128; ++blocks) {
      caches.push_back(engine_.make_cache(1000, 0));
      if (blocks == 0) continue;
      SequenceState known = engine_.model.new_sequence();
      (void)engine_.read_cold(prompt(blocks * 128), Replay::kExact, &known);
      caches.back()->publish(known, {}, "", nullptr);
    }
    std::vector<int64_t> lengths;
    lengths.reserve(blocks_of.size());
    for (const auto& [length, blocks] : blocks_of)
      lengths.push_back(length);
    for_prompts(lengths, Replay::kExact, 46, [&](int64_t n, SequenceState& cold, const std::vector<float>& expected) {
      for (const int64_t blocks : blocks_of[n]) {
        KvCache::Resumed warm = caches[static_cast<size_t>(blocks)]->resume(query_of(prompt(n), true));
        ASSERT_EQ(warm.report.hit_tokens, blocks * 128) << n;
        ASSERT_TRUE(warm.report.is_exact);
        ASSERT_EQ(engine_.read(warm.state, prompt(n), Replay::kExact), expected) << blocks << " blocks, " << n;
        ASSERT_TRUE(same_state(warm.state, cold)) << blocks << " blocks, " << n;
      }
    });
  }

  GoldenEngine engine_;
  Tokens tokens_ = random_tokens(kBoundaryMax + 300, 1);
};

TEST_F(CacheEquality, SnapshotEqualsNeverHavingStopped) {
  check_snapshots(kSample);
}
TEST_F(CacheEquality, SlowSnapshotEqualsNeverHavingStoppedAtEveryBoundary) {
  check_snapshots(all_boundaries());
}

TEST_F(CacheEquality, BlocksWithExactReplayEqualColdReading) {
  check_exact_replay(kSample);
}
TEST_F(CacheEquality, SlowBlocksWithExactReplayEqualColdReadingAtEveryBoundary) {
  check_exact_replay(all_boundaries());
}

/// One layer's share fewer would not do.
TEST_F(CacheEquality, ExactReplayReadsNoMoreThanItMust) {
  SequenceState cold = engine_.model.new_sequence();
  const std::vector<float> expected = engine_.read_cold(prompt(300), Replay::kExact, &cold);
  const std::vector<std::shared_ptr<const KvBlock>> blocks(cold.blocks().begin(), cold.blocks().begin() + 2);
  const auto resume_at = [&](int64_t from) {
    SequenceState state = SequenceState::resume(engine_.model.kv_layout(), prompt(from), blocks);
    return engine_.read(state, prompt(300), Replay::kExact);
  };
  const std::unique_ptr<KvCache> cache = engine_.make_cache(1000, 0);
  cache->publish(cold, {}, "", nullptr);
  const int64_t from = cache->resume(query_of(prompt(300), true)).state.length();
  EXPECT_EQ(from, 300 - 1 - 8 * 15);  // all 8 layers look back 15 positions each
  EXPECT_EQ(resume_at(from), expected);
  EXPECT_NE(resume_at(from + 15), expected);
}

/// The same prompt again goes back by one position, whatever group or block that lies in. (known faults 32, 45)
TEST_F(CacheEquality, RegeneratedAnswerBeginsWithTheSameLogits) {
  const std::unique_ptr<KvCache> cache = engine_.make_cache();
  std::vector<int64_t> around_blocks = kSample;
  for (const int64_t border : {128, 256, 384})
    for (int64_t p = border - 4; p <= border + 4; ++p)
      around_blocks.push_back(p);
  std::ranges::sort(around_blocks);
  for_prompts(around_blocks, Replay::kBounded, 16,
              [&](int64_t p, SequenceState& live, const std::vector<float>& expected) {
                cache->snapshot(live, {}, "", nullptr);
                KvCache::Resumed again = cache->resume(query_of(prompt(p)));
                ASSERT_EQ(again.state.length(), p - 1);
                ASSERT_EQ(engine_.read(again.state, prompt(p)), expected) << p;
              });
}

/// Where a chunk ends is nobody's business, in a replay neither. (known faults 43)
TEST_F(CacheEquality, ChunksDoNotMatterAfterAHit) {
  SequenceState known = engine_.model.new_sequence();
  (void)engine_.read_cold(prompt(300), Replay::kBounded, &known);
  const std::unique_ptr<KvCache> cache = engine_.make_cache(1000, 0);
  cache->publish(known, {}, "", nullptr);
  for (const bool exact : {false, true}) {
    const Replay replay = exact ? Replay::kExact : Replay::kBounded;
    KvCache::Resumed whole = cache->resume(query_of(prompt(411), exact));
    const std::vector<float> expected = engine_.read(whole.state, prompt(411), replay);
    for (const size_t chunk : {size_t{1}, size_t{7}, size_t{15}, size_t{16}, size_t{64}, size_t{128}}) {
      KvCache::Resumed chunked = cache->resume(query_of(prompt(411), exact));
      EXPECT_EQ(engine_.read(chunked.state, prompt(411), replay, chunk), expected) << chunk;
      EXPECT_TRUE(same_state(chunked.state, whole.state)) << chunk;
    }
  }
}

/// Blocks go and are computed again behind bounded replays while snapshots above them stay: whatever is said to be
/// exact has the global KV of a cold reading, to the bit.
TEST_F(CacheEquality, WhatIsSaidToBeExactIsSoAfterEvictionsAndBoundedReplays) {
  const std::unique_ptr<KvCache> cache = engine_.make_cache(6);
  const auto beginning = [&](int64_t length, size_t more, uint32_t seed) {
    return joined(Tokens(tokens_.begin(), tokens_.begin() + length), random_tokens(more, seed));
  };
  // Exact blocks and a snapshot; some of them go; they are computed again as bounded; the snapshot is gone on from.
  const std::vector<Tokens> first = {beginning(645, 0, 0), random_tokens(385, 99), beginning(640, 7, 1),
                                     beginning(700, 0, 0)};
  std::mt19937 random(5);
  int exact_hits = 0;
  int bounded_hits = 0;
  for (uint32_t step = 0; step < 40; ++step) {
    const bool is_other = random() % 4 == 0;  // pushes pages out
    const auto length = static_cast<int64_t>(150 + random() % 500);
    const Tokens text = step < first.size() ? first[step]
                        : is_other          ? random_tokens(400, 100 + step)
                                            : beginning(length, 5, step);
    KvCache::Resumed resumed = cache->resume(query_of(text));
    (void)engine_.read(resumed.state, text);
    cache->snapshot(resumed.state, {}, "", nullptr);
    if (resumed.state.is_bounded()) {
      EXPECT_FALSE(resumed.report.is_exact);
      ++bounded_hits;
      continue;
    }
    exact_hits += resumed.report.hit_tokens > 0 ? 1 : 0;
    SequenceState cold = engine_.model.new_sequence();
    (void)engine_.read_cold(text, Replay::kBounded, &cold);
    for (size_t i = 0; i < text.size() / static_cast<size_t>(kBlockTokens); ++i)
      ASSERT_TRUE(std::ranges::equal(resumed.state.blocks()[i]->span(), cold.blocks()[i]->span())) << step << " " << i;
  }
  EXPECT_GT(exact_hits, 0);
  EXPECT_GT(bounded_hits, 0);
}

/// Another long request in between leaves no trace in the windows. (known faults 29)
TEST_F(CacheEquality, OtherSequencesLeaveNoTrace) {
  const std::unique_ptr<KvCache> cache = engine_.make_cache();
  const Tokens a = random_tokens(300, 2);
  const Tokens b = random_tokens(400, 3);
  for (const Tokens* text : {&a, &b}) {
    KvCache::Resumed resumed = cache->resume(query_of(*text, true));
    (void)engine_.read(resumed.state, *text, Replay::kExact);
    cache->snapshot(resumed.state, {}, "", nullptr);
  }
  const Tokens next = joined(a, random_tokens(30, 4));
  KvCache::Resumed warm = cache->resume(query_of(next, true));
  EXPECT_EQ(warm.report.hit_tokens, 300);
  EXPECT_EQ(engine_.read(warm.state, next, Replay::kExact), engine_.read_cold(next, Replay::kExact));
}

/// Prompts that share a header only. (known faults 38)
TEST_F(CacheEquality, SharedHeaderOfUnrelatedPromptsIsAllThatIsShared) {
  const std::unique_ptr<KvCache> cache = engine_.make_cache();
  const Tokens header = random_tokens(200, 5);
  for (uint32_t i = 0; i < 4; ++i) {
    const Tokens text = joined(header, random_tokens(150 + i, 10 + i));
    KvCache::Resumed warm = cache->resume(query_of(text, true));
    EXPECT_EQ(warm.report.hit_tokens, i == 0 ? 0 : 128);
    EXPECT_EQ(engine_.read(warm.state, text, Replay::kExact), engine_.read_cold(text, Replay::kExact));
    cache->snapshot(warm.state, {}, "", nullptr);
  }
}

/// Sessions that fork, go back, decode and are evicted in a random order: under exact replay every prompt's logits are
/// those of reading it cold.
TEST_F(CacheEquality, RandomSessionsUnderPressureEqualColdReading) {
  const std::unique_ptr<KvCache> cache = engine_.make_cache(7, 60'000);
  std::mt19937 random(11);
  std::vector<Tokens> sessions(4);
  int64_t hits = 0;
  for (uint32_t turn = 0; turn < 24; ++turn) {
    Tokens& text = sessions[random() % sessions.size()];
    if (text.size() > 500 || random() % 6 == 0) text.resize(text.size() * (random() % 4) / 4);
    if (random() % 7 == 0) text = sessions[random() % sessions.size()];
    text = joined(text, random_tokens(1 + random() % 150, 100 + turn));
    KvCache::Resumed warm = cache->resume(query_of(text, true));
    hits += warm.report.hit_tokens;
    ASSERT_TRUE(warm.report.is_exact);
    ASSERT_EQ(engine_.read(warm.state, text, Replay::kExact), engine_.read_cold(text, Replay::kExact)) << turn;
    cache->snapshot(warm.state, {}, "", nullptr);
    for (const InputToken& token : random_tokens(random() % 20, 500 + turn)) {
      (void)engine_.step(warm.state, token);
      text.push_back(token);
    }
    cache->snapshot(warm.state, {}, "", nullptr);
  }
  EXPECT_GT(hits, 1000);
}

/// Snapshot of a decoding sequence, restored, decodes on alike.
TEST_F(CacheEquality, DecodingGoesOnFromASnapshot) {
  const std::unique_ptr<KvCache> cache = engine_.make_cache();
  SequenceState live = engine_.model.new_sequence();
  (void)engine_.read_cold(prompt(250), Replay::kBounded, &live);
  for (int64_t p = 250; p < 262; ++p) {
    (void)engine_.step(live, tokens_[static_cast<size_t>(p)]);
    cache->snapshot(live, {}, "", nullptr);
    KvCache::Resumed warm = cache->resume(query_of(prompt(p + 2)));
    ASSERT_EQ(warm.report.hit_tokens, p + 1);
    SequenceState fork = live.fork();
    EXPECT_EQ(engine_.step(warm.state, tokens_[static_cast<size_t>(p) + 1]),
              engine_.step(fork, tokens_[static_cast<size_t>(p) + 1]));
    EXPECT_TRUE(same_state(warm.state, fork));
  }
}

}  // namespace
}  // namespace tidepool
