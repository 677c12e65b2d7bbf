// Cached context with pictures in it: wherever a cut falls, what comes back computes what was never interrupted
// computes, and pictures of one size share nothing. On the tiny golden model, whose tower sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/temp_folder.h"
#include "engine/cache_test_support.h"
#include "image/image_test_support.h"
#include "kv/disk_store.h"
#include "model/vision.h"

namespace tidepool {
namespace {

using cache_testing::GoldenEngine;
using cache_testing::random_tokens;
using cache_testing::Tokens;

/// Where the first block ends, and where snapshots are cut.
constexpr int64_t kCut = kBlockTokens;
constexpr int64_t kLength = 300;

/// A text with one picture in it.
class Prompt final : public ImageRowSource {
 public:
  Prompt(int64_t begin, const VisionFeatures& features, uint8_t name, int64_t image_id)
      : tokens_(random_tokens(kLength, 1)) {
    ImageSpan span{begin, begin + static_cast<int64_t>(features.tokens), {}};
    span.digest.fill(std::byte{name});
    spans_ = {span};
    rows_ = {{begin, features.rows()}};
    for (int64_t i = span.begin; i < span.end; ++i)
      tokens_[static_cast<size_t>(i)] = {static_cast<int32_t>(image_id), true};
  }

  [[nodiscard]] std::span<const ImageRows> rows(int64_t, int64_t) override { return rows_; }
  [[nodiscard]] std::span<const InputToken> first(int64_t length) const {
    return std::span(tokens_).first(static_cast<size_t>(length));
  }
  [[nodiscard]] const std::vector<ImageSpan>& spans() const { return spans_; }
  [[nodiscard]] KvCache::Query query(Replay replay) const {
    KvCache::Query query;
    query.text = {tokens_, spans_};
    set_replay(query, replay);
    return query;
  }

 private:
  Tokens tokens_;
  std::vector<ImageSpan> spans_;
  std::vector<ImageRows> rows_;
};

/// What a prompt came to.
struct Outcome {
  std::vector<float> logits;
  SequenceState state;
};

/// Where the picture begins, from the cut: behind it, inside it at several places, ending at it, well before it.
class ImageCache : public testing::TestWithParam<int64_t> {
 protected:
  static void SetUpTestSuite() {
    engine = std::make_unique<GoldenEngine>();
    const ImagePlanConfig config = image_plan_config(*engine->model.config().vision);
    std::vector<PreparedImage> prepared;
    prepared.reserve(2);
    for (const uint32_t seed : {1U, 2U})
      prepared.push_back(prepare_image(config, image_test::noise_image(168, 126, seed), "picture"));
    const std::vector<const PreparedImage*> pointers = {&prepared[0], &prepared[1]};
    features = encode_images(engine->model, engine->runtime, pointers);
  }
  static void TearDownTestSuite() {
    features.clear();
    engine.reset();
  }

  /// Reads up to `length` and returns what that came to.
  static Outcome read(Prompt& prompt, SequenceState state, int64_t length, Replay replay) {
    Outcome outcome{{}, std::move(state)};
    PrefillOptions options;
    options.replay = replay;
    options.images = &prompt;
    const auto done = static_cast<size_t>(outcome.state.length());
    EXPECT_TRUE(prefill(engine->model, engine->runtime, engine->arena, outcome.state,
                        prompt.first(length).subspan(done), options, [&](int64_t, Span2d<const float> logits, size_t) {
                          if (logits.rows > 0) outcome.logits.assign(logits.data, logits.data + logits.cols);
                          return true;
                        }));
    return outcome;
  }
  static Outcome read_cold(Prompt& prompt, int64_t length, Replay replay) {
    return read(prompt, engine->model.new_sequence(), length, replay);
  }

  /// Both pictures at the case's place, as two prompts that differ in nothing else.
  [[nodiscard]] int64_t begin() const { return GetParam(); }
  [[nodiscard]] bool touches_cut() const { return begin() < kCut; }
  Prompt same_{GetParam(), features.at(0), 1, *engine->model.config().image_token_id};
  Prompt other_{GetParam(), features.at(1), 2, *engine->model.config().image_token_id};

  /// A cache with a folder, which the next one opens again.
  std::unique_ptr<KvCache> cache_on_disk(size_t snapshot_bytes) const {
    DiskStoreOptions options;
    options.folder = folder_.path() / "kv";
    options.layout = engine->model.kv_layout();
    return engine->make_cache(1000, snapshot_bytes, open_disk_store(options));
  }

  void check_snapshot(KvCache& cache, const Outcome& live, CacheTier tier) {
    KvCache::Resumed warm = cache.resume(same_.query(Replay::kBounded));
    ASSERT_EQ(warm.report.hit_tokens, kCut);
    ASSERT_EQ(warm.report.tier, tier);
    ASSERT_TRUE(same_state(warm.state, live.state));
    const Outcome expected = read(same_, live.state.fork(), kLength, Replay::kBounded);
    const Outcome actual = read(same_, std::move(warm.state), kLength, Replay::kBounded);
    EXPECT_EQ(actual.logits, expected.logits);
    EXPECT_TRUE(same_state(actual.state, expected.state));
    EXPECT_EQ(cache.resume(other_.query(Replay::kBounded)).report.hit_tokens, touches_cut() ? 0 : kCut);
  }

  /// One block is known. With an exact replay the result is that of a cold reading, for either picture.
  void check_exact_replay(KvCache& cache, CacheTier tier) {
    for (Prompt* prompt : {&same_, &other_}) {
      KvCache::Resumed warm = cache.resume(prompt->query(Replay::kExact));
      const bool hits = prompt == &same_ || !touches_cut();
      ASSERT_EQ(warm.report.hit_tokens, hits ? kCut : 0);
      // What came from disk for the first is in RAM for the second.
      const CacheTier expected_tier = prompt == &same_ ? tier : CacheTier::kPages;
      ASSERT_EQ(warm.report.tier, hits ? expected_tier : CacheTier::kNone);
      const Outcome expected = read_cold(*prompt, kLength, Replay::kExact);
      const Outcome actual = read(*prompt, std::move(warm.state), kLength, Replay::kExact);
      EXPECT_EQ(actual.logits, expected.logits);
      EXPECT_TRUE(same_state(actual.state, expected.state));
    }
  }

  /// With a bounded replay it is that of the same blocks, taken up by hand at the same place.
  void check_bounded_replay(KvCache& cache, const SequenceState& known, CacheTier tier) {
    KvCache::Resumed warm = cache.resume(same_.query(Replay::kBounded));
    ASSERT_EQ(warm.report.hit_tokens, kCut);
    ASSERT_EQ(warm.report.tier, tier);
    ASSERT_LT(warm.state.length(), kCut);  // some of the window is read again, pictures included
    const std::vector<std::shared_ptr<const KvBlock>> blocks = {known.blocks()[0]};
    SequenceState by_hand = SequenceState::resume(engine->model.kv_layout(), same_.first(warm.state.length()), blocks);
    const Outcome expected = read(same_, std::move(by_hand), kLength, Replay::kBounded);
    EXPECT_EQ(read(same_, std::move(warm.state), kLength, Replay::kBounded).logits, expected.logits);
    EXPECT_EQ(cache.resume(other_.query(Replay::kBounded)).report.hit_tokens, touches_cut() ? 0 : kCut);
  }

  inline static std::unique_ptr<GoldenEngine> engine;
  inline static std::vector<VisionFeatures> features;  ///< of two pictures of one size
  TempFolder folder_;
};

TEST_P(ImageCache, PicturesOfOneSizeComeToDifferentResults) {
  ASSERT_EQ(features[0].tokens, 17U);
  ASSERT_EQ(features[1].tokens, 17U);
  EXPECT_NE(read_cold(same_, kLength, Replay::kExact).logits, read_cold(other_, kLength, Replay::kExact).logits);
}

TEST_P(ImageCache, SnapshotsInRamAndOnDiskGoOnAsIfNeverStopped) {
  const Outcome live = read_cold(same_, kCut, Replay::kBounded);
  {
    const std::unique_ptr<KvCache> cache = cache_on_disk(size_t{64} << 20);
    cache->snapshot(live.state, same_.spans(), "", nullptr);
    check_snapshot(*cache, live, CacheTier::kSnapshotRam);
  }
  check_snapshot(*cache_on_disk(size_t{64} << 20), live, CacheTier::kSnapshotDisk);
}

TEST_P(ImageCache, BlocksInRamAndOnDiskEqualColdReading) {
  const Outcome known = read_cold(same_, kCut + 70, Replay::kExact);
  {
    const std::unique_ptr<KvCache> cache = cache_on_disk(0);
    cache->publish(known.state, same_.spans(), "", nullptr);
    check_exact_replay(*cache, CacheTier::kPages);
    check_bounded_replay(*cache, known.state, CacheTier::kPages);
  }
  check_exact_replay(*cache_on_disk(0), CacheTier::kDisk);
  check_bounded_replay(*cache_on_disk(0), known.state, CacheTier::kDisk);
}

/// The span has 17 positions: behind the cut, from it on, three cuts inside, to the cut, before it.
INSTANTIATE_TEST_SUITE_P(Places, ImageCache,
                         testing::Values(kCut + 40, kCut, kCut - 1, kCut - 8, kCut - 16, kCut - 17, kCut - 18, 20),
                         [](const auto& test) { return "at_" + std::to_string(test.param); });

}  // namespace
}  // namespace tidepool
