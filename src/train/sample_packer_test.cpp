#include "train/sample_packer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "train/bpe_trainer.h"
#include "train/random_stream.h"

namespace tidepool {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Samples of `low` to `high` tokens; the first token is `mark`, the second the place, so that they can be told apart.
class MarkedSource final : public SampleSource {
 public:
  MarkedSource(int32_t mark, size_t low, size_t high)
      : SampleSource("marked" + std::to_string(mark)), mark_(mark), low_(low), high_(high) {}

  [[nodiscard]] Sample make(uint64_t place) const override {
    RandomStream random(9, name(), place);
    Sample sample;
    const auto count = static_cast<size_t>(random.between(static_cast<int64_t>(low_), static_cast<int64_t>(high_)));
    sample.ids.assign(count, 0);
    sample.ids[0] = mark_;
    sample.ids[1] = static_cast<int32_t>(place);
    sample.weights.assign(count, 1);
    sample.weights.back() = 0;
    return sample;
  }

 private:
  int32_t mark_;
  size_t low_;
  size_t high_;
};

TEST(SamplePacker, WeighsTheTokensOfAPart) {
  const MarkedSource light(1, 4, 4);
  const MarkedSource heavy(2, 4, 4);
  SamplePacker packer({{&light, 1}, {&heavy, 1, 2.5}}, {.rows = 64, .seed = 1});
  const TokenBatch batch = packer.next();
  ASSERT_FALSE(batch.segments.empty());
  for (const TokenBatch::Segment& segment : batch.segments) {
    const float weight = batch.ids[segment.begin] == 1 ? 1.0F : 2.5F;
    EXPECT_EQ(batch.weights[segment.begin], weight);
    EXPECT_EQ(batch.weights[segment.begin + segment.count - 1], 0);
  }
}

std::vector<TokenBatch> take(SamplePacker& packer, size_t count) {
  std::vector<TokenBatch> batches;
  batches.reserve(count);
  for (size_t i = 0; i < count; ++i)
    batches.push_back(packer.next());
  return batches;
}

TEST(PackBestFit, PutsEachSampleWhereItFillsMost) {
  // 7 and 6 open batches with room for 3 and 4; 4 fills the second, 3 the first, 2 opens a third.
  EXPECT_THAT(pack_best_fit({2, 7, 3, 6, 4}, 10), ElementsAre(2, 0, 0, 1, 1));
  EXPECT_THAT(pack_best_fit({10, 10}, 10), ElementsAre(0, 1));
  EXPECT_TRUE(pack_best_fit({}, 10).empty());
}

TEST(PackBestFit, NoBatchHasMoreThanItsRows) {
  std::mt19937 random(1);
  std::vector<size_t> lengths(2000);
  size_t tokens = 0;
  for (size_t& length : lengths)
    tokens += length = 2 + random() % 500;
  const std::vector<size_t> batch_of = pack_best_fit(lengths, 512);
  std::map<size_t, size_t> filled;
  for (size_t s = 0; s < lengths.size(); ++s)
    filled[batch_of[s]] += lengths[s];
  for (const auto& [batch, rows] : filled)
    EXPECT_LE(rows, 512) << batch;
  // No packing needs fewer than tokens / rows, and best fit decreasing at most 11/9 of the best and 6/9. (Johnson 1973)
  EXPECT_LE(filled.size(), (tokens / 512 + 1) * 11 / 9 + 1);
}

TEST(MakeBatch, TargetsAreTheNextTokensOfTheSameSample) {
  const TokenBatch batch = make_batch({{{5, 6, 7}, {0, 1, 0}}, {{8, 9}, {1, 0}}});
  EXPECT_THAT(batch.ids, ElementsAre(5, 6, 7, 8, 9));
  EXPECT_THAT(batch.targets, ElementsAre(6, 7, 0, 9, 0));
  EXPECT_THAT(batch.weights, ElementsAre(0, 1, 0, 1, 0));
  ASSERT_EQ(batch.segments.size(), 2);
  EXPECT_EQ(batch.segments[1].begin, 3);
  EXPECT_EQ(batch.segments[1].count, 2);
}

TEST(MakeBatch, PicturesStandAtTheRowsOfTheirSample) {
  const auto first = std::make_shared<const PreparedImage>();
  const auto second = std::make_shared<const PreparedImage>();
  const TokenBatch batch = make_batch({{.ids = {5, 6, 7}, .weights = {0, 1, 0}, .pictures = {{1, first}}},
                                       {.ids = {8, 9}, .weights = {1, 0}},
                                       {.ids = {5, 6}, .weights = {0, 0}, .pictures = {{0, second}, {1, first}}}});
  ASSERT_EQ(batch.pictures.size(), 3);
  EXPECT_EQ(batch.pictures[0].begin, 1);
  EXPECT_EQ(batch.pictures[1].begin, 5);
  EXPECT_EQ(batch.pictures[2].begin, 6);
  EXPECT_EQ(batch.pictures[1].image, second);
}

TEST(SamplePacker, EverySampleComesOnceAndWhole) {
  const MarkedSource first(1, 2, 100);
  const MarkedSource second(2, 50, 256);
  SamplePacker packer({{&first, 1}, {&second, 2}}, {.rows = 256, .seed = 3, .window_batches = 8});
  std::map<int32_t, std::set<int32_t>> places;
  for (const TokenBatch& batch : take(packer, 100)) {
    EXPECT_LE(batch.rows(), 256);
    for (const TokenBatch::Segment& segment : batch.segments) {
      const int32_t mark = batch.ids[segment.begin];
      const int32_t place = batch.ids[segment.begin + 1];
      EXPECT_TRUE(places[mark].insert(place).second) << "sample " << place << " of " << mark << " came twice";
      const SampleSource& source = mark == 1 ? static_cast<const SampleSource&>(first) : second;
      EXPECT_EQ(segment.count, source.make(static_cast<uint64_t>(place)).ids.size());
    }
  }
}

TEST(SamplePacker, TokensAreSharedByWeight) {
  const MarkedSource first(1, 2, 20);
  const MarkedSource second(2, 100, 256);
  SamplePacker packer({{&first, 1}, {&second, 3}}, {.rows = 256, .seed = 3, .window_batches = 16});
  std::map<int32_t, size_t> tokens;
  for (const TokenBatch& batch : take(packer, 400)) {
    for (const TokenBatch::Segment& segment : batch.segments)
      tokens[batch.ids[segment.begin]] += segment.count;
  }
  // Whole windows are exact to one sample; the window under way may be off by its own size.
  EXPECT_NEAR(static_cast<double>(tokens[2]) / static_cast<double>(tokens[1]), 3.0, 0.2);
}

TEST(SamplePacker, WastesFewRows) {
  const MarkedSource first(1, 20, 300);
  const MarkedSource second(2, 100, 1024);
  SamplePacker packer({{&first, 1}, {&second, 1}}, {.rows = 1024, .seed = 3});
  (void)packer.next();
  EXPECT_LT(packer.padding_share(), 0.03);  // of 64 batches, the last may be empty but for one sample
  EXPECT_GE(packer.padding_share(), 0);
}

TEST(SamplePacker, GoesOnWhereItWasFromAFewNumbers) {
  const MarkedSource first(1, 2, 100);
  const MarkedSource second(2, 50, 256);
  const SamplePackerOptions options{.rows = 256, .seed = 3, .window_batches = 8};
  SamplePacker packer({{&first, 1}, {&second, 2}}, options);
  for (int round = 0; round < 5; ++round) {
    (void)take(packer, 7);
    SamplePacker again({{&first, 1}, {&second, 2}}, options);
    again.seek(packer.position());
    const SamplePacker::Position before = packer.position();
    const std::vector<TokenBatch> expected = take(packer, 10);
    const std::vector<TokenBatch> found = take(again, 10);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(found[i].ids, expected[i].ids) << "batch " << i;
    EXPECT_EQ(again.position(), packer.position());
    packer.seek(before);
    EXPECT_EQ(packer.next().ids, expected[0].ids);
  }
}

TEST(SamplePacker, SeedsGiveOtherOrders) {
  const MarkedSource source(1, 2, 100);
  SamplePacker first({{&source, 1}}, {.rows = 256, .seed = 1});
  SamplePacker second({{&source, 1}}, {.rows = 256, .seed = 2});
  EXPECT_NE(first.next().ids, second.next().ids);
}

TEST(SamplePacker, ASampleThatFitsNoBatchIsNamed) {
  const MarkedSource source(1, 300, 300);
  SamplePacker packer({{&source, 1}}, {.rows = 256});
  try {
    (void)packer.next();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("marked1: sample 0 has 300 tokens, and the stage's batch_rows is 256;"));
    EXPECT_THAT(error.what(), HasSubstr("batch_rows of 300 or more"));
  }
}

TEST(SamplePacker, BadMixturesAndPositionsAreRefused) {
  const MarkedSource source(1, 2, 10);
  EXPECT_THROW(SamplePacker({}, {.rows = 256}), Error);
  EXPECT_THROW(SamplePacker({{&source, 0}}, {.rows = 256}), Error);
  EXPECT_THROW(SamplePacker({{&source, 1}}, {.rows = 1}), Error);
  SamplePacker packer({{&source, 1}}, {.rows = 256});
  EXPECT_THROW(packer.seek({}), Error);
}

/// What a file says cannot send a packer through windows without end.
TEST(SamplePacker, APositionThatNoRunComesToIsRefused) {
  const MarkedSource source(1, 2, 10);
  const SamplePackerOptions options{.rows = 256, .seed = 3, .window_batches = 8};
  SamplePacker packer({{&source, 1}}, options);
  for (const SamplePacker::Position& position :
       {SamplePacker::Position{.window = 0, .batch = 0, .parts = {{0, uint64_t{1} << 63}}},
        SamplePacker::Position{.window = uint64_t{1} << 60, .batch = 0, .parts = {{0, 0}}},
        SamplePacker::Position{.window = uint64_t{1} << 53, .batch = 0, .parts = {{0, ~uint64_t{0}}}},
        SamplePacker::Position{.window = 1, .batch = 0, .parts = {{300, 2047}}},
        SamplePacker::Position{.window = 1, .batch = 0, .parts = {{300, 2304}}}}) {
    try {
      packer.seek(position);
      ADD_FAILURE() << position.window << ", " << position.parts[0].tokens;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
      EXPECT_THAT(error.what(), HasSubstr("tokens of marked1 before window"));
    }
  }
  packer.seek({.window = 1, .batch = 0, .parts = {{300, 2048}}});
  packer.seek({.window = 1, .batch = 0, .parts = {{300, 2303}}});
}

TEST(ShuffledIndex, TakesEveryPlaceOnce) {
  for (const uint64_t count : {1U, 2U, 3U, 7U, 64U, 100U, 1000U}) {
    std::set<uint64_t> places;
    uint64_t kept = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t place = shuffled_index(5, 1, i, count);
      EXPECT_LT(place, count);
      places.insert(place);
      kept += place == i ? 1 : 0;
    }
    EXPECT_EQ(places.size(), count);
    EXPECT_LE(kept, count < 100 ? count : count / 10);
  }
  EXPECT_NE(shuffled_index(5, 1, 3, 1000), shuffled_index(5, 2, 3, 1000));
}

TEST(RandomStream, IsUniformAndNamed) {
  RandomStream random(1, "dice", 0);
  std::array<int, 6> counts{};
  for (int i = 0; i < 6000; ++i)
    ++counts[random.below(6)];
  for (const int count : counts)
    EXPECT_NEAR(count, 1000, 150);  // five standard deviations of a binomial: 5 * sqrt(6000 / 6 * 5 / 6)
  EXPECT_NE(RandomStream(1, "dice", 0).next(), RandomStream(1, "dice", 1).next());
  EXPECT_NE(RandomStream(1, "dice", 0).next(), RandomStream(1, "coin", 0).next());
  EXPECT_NE(RandomStream(1, "dice", 0).next(), RandomStream(2, "dice", 0).next());
  RandomStream range(1, "range", 0);
  for (int i = 0; i < 100; ++i)
    EXPECT_THAT(range.between(-3, 3), ::testing::AllOf(::testing::Ge(-3), ::testing::Le(3)));
}

class TextSourceTest : public ::testing::Test {
 protected:
  std::unique_ptr<SampleSource> make(size_t length_max, Split split = Split::kTrain) {
    return make_text_source(source_, {.split = split, .seed = 4, .length_max = length_max}, tokenizer_, pool_);
  }

  ThreadPool pool_{2};
  Tokenizer tokenizer_ = Tokenizer::parse(write_tokenizer_json(train_bpe({}, {.token_count = 256})), "bytes");
  CorpusSource source_{"tales", {{"a", "The first tale."}, {"b", "A second, longer tale with more words."}}, {}};
};

TEST_F(TextSourceTest, DocumentsBeginAndEndASentence) {
  const auto texts = make(100);
  std::set<std::string> seen;
  for (uint64_t place = 0; place < 2; ++place) {
    const Sample sample = texts->make(place);
    seen.insert(tokenizer_.decode(sample.ids));
    EXPECT_EQ(sample.weights.back(), 0);
    EXPECT_EQ(std::count(sample.weights.begin(), sample.weights.end(), 1.0F),
              static_cast<ptrdiff_t>(sample.ids.size()) - 1);
  }
  EXPECT_THAT(seen, ElementsAre("<｜begin▁of▁sentence｜>A second, longer tale with more words.<｜end▁of▁sentence｜>",
                                "<｜begin▁of▁sentence｜>The first tale.<｜end▁of▁sentence｜>"));
}

TEST_F(TextSourceTest, LongDocumentsAreCutIntoEqualPartsWithoutLoss) {
  const auto texts = make(11);  // 16 and 39 tokens in parts of at most 10: 2 and 4 of them
  std::map<std::string, int> parts;
  size_t tokens = 0;
  for (uint64_t place = 0; place < 6; ++place) {
    const Sample sample = texts->make(place);
    EXPECT_LE(sample.ids.size(), 11);
    EXPECT_GE(sample.ids.size(), 9);
    tokens += sample.ids.size() - 1;
    ++parts[tokenizer_.decode(sample.ids)];
  }
  EXPECT_EQ(parts.size(), 6);
  EXPECT_EQ(tokens, 16 + 39);
}

TEST_F(TextSourceTest, EachRoundHasAllDocumentsInAnotherOrder) {
  for (int i = 0; i < 30; ++i)
    source_.train.push_back({"more", "Tale " + std::to_string(i)});
  const auto texts = make(100);
  std::vector<std::vector<int32_t>> first;
  std::vector<std::vector<int32_t>> second;
  for (uint64_t place = 0; place < 32; ++place) {
    first.push_back(texts->make(place).ids);
    second.push_back(texts->make(32 + place).ids);
  }
  EXPECT_NE(first, second);
  EXPECT_THAT(second, ::testing::UnorderedElementsAreArray(first));
}

TEST_F(TextSourceTest, WithoutDocumentsThereIsNone) {
  EXPECT_THROW((void)make(100, Split::kHeldout), Error);
  EXPECT_THROW((void)make(1), Error);
}

}  // namespace
}  // namespace tidepool
