#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tidepool {
namespace {

TEST(Bpe, ByteLettersAreTheAgreedOnes) {
  EXPECT_EQ(byte_letters("a !~"), "a\u0120!~");
  EXPECT_EQ(byte_letters(std::string_view("\0\n\x7F\xAD", 4)), "\u0100\u010A\u0121\u0143");
  EXPECT_EQ(byte_letters("中"), "\u00E4\u00B8\u0143");
}

TEST(Bpe, EveryByteSurvivesItsLetter) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte)
    bytes += static_cast<char>(byte);
  EXPECT_EQ(bytes_of_letters(byte_letters(bytes)), bytes);
  EXPECT_EQ(bytes_of_letters(""), "");
}

TEST(Bpe, OtherCharactersAreNoByteLetters) {
  EXPECT_EQ(bytes_of_letters("a b"), std::nullopt);     // the space is written as U+0120
  EXPECT_EQ(bytes_of_letters("\u0144"), std::nullopt);  // just behind the last
  EXPECT_EQ(bytes_of_letters("\u00AD"), std::nullopt);  // one of the 68
  EXPECT_EQ(bytes_of_letters("<｜User｜>"), std::nullopt);
}

TEST(Bpe, APairMergesOnceOnly) {
  BpeMerges merges(2);
  EXPECT_TRUE(merges.add(1, 2, 300));
  EXPECT_FALSE(merges.add(1, 2, 301));
  EXPECT_TRUE(merges.add(2, 1, 302));
  ASSERT_NE(merges.find(1, 2), nullptr);
  EXPECT_EQ(merges.find(1, 2)->merged, 300);
  EXPECT_EQ(merges.find(1, 2)->rank, 0U);
  EXPECT_EQ(merges.find(2, 1)->rank, 1U);
  EXPECT_EQ(merges.find(1, 1), nullptr);
}

TEST(Bpe, WithoutMergesNothingIsFound) {
  const BpeMerges merges(0);
  EXPECT_EQ(merges.find(0, 0), nullptr);
}

/// Ids 0-255 are the bytes, later ones what merges made.
struct Vocabulary {
  std::vector<int32_t> byte_ids;
  BpeMerges merges{0};
  std::vector<std::pair<std::pair<int32_t, int32_t>, int32_t>> list;
};

Vocabulary make_random_vocabulary(std::mt19937& random, size_t merge_count) {
  Vocabulary vocabulary;
  for (int32_t byte = 0; byte < 256; ++byte)
    vocabulary.byte_ids.push_back(byte);
  vocabulary.merges = BpeMerges(merge_count);
  std::vector<int32_t> tokens = {'a', 'b', 'c'};
  int32_t next = 256;
  while (vocabulary.list.size() < merge_count) {
    const int32_t left = tokens[random() % tokens.size()];
    const int32_t right = tokens[random() % tokens.size()];
    // Now and then two merges make the same token, as "ab" + "c" and "a" + "bc" do.
    const int32_t merged = random() % 4 == 0 ? tokens.back() : next;
    if (!vocabulary.merges.add(left, right, merged)) continue;
    vocabulary.list.push_back({{left, right}, merged});
    if (merged == next) tokens.push_back(next++);
  }
  return vocabulary;
}

/// The definition, word for word, in quadratic time.
std::vector<int32_t> encode_by_definition(const Vocabulary& vocabulary, std::string_view piece) {
  std::vector<int32_t> ids;
  for (const char byte : piece)
    ids.push_back(static_cast<uint8_t>(byte));
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t rank = 0; rank < vocabulary.list.size(); ++rank)
    ranks[vocabulary.list[rank].first] = rank;
  while (true) {
    size_t best_rank = vocabulary.list.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found == ranks.end() || found->second >= best_rank) continue;
      best_rank = found->second;
      best = i;
    }
    if (best_rank == vocabulary.list.size()) return ids;
    ids[best] = vocabulary.list[best_rank].second;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Bpe, AgreesWithTheDefinitionForRandomVocabulariesAndPieces) {
  constexpr uint32_t kSeed = 77;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 300; ++round) {
    const Vocabulary vocabulary = make_random_vocabulary(random, random() % 40);
    BpeEncoder encoder(vocabulary.byte_ids, vocabulary.merges);
    for (int piece_index = 0; piece_index < 20; ++piece_index) {
      std::string piece;
      for (size_t length = random() % 40; length > 0; --length)
        piece += static_cast<char>('a' + random() % 3);
      std::vector<int32_t> ids;
      encoder.append(piece, ids);
      ASSERT_EQ(ids, encode_by_definition(vocabulary, piece))
          << "round " << round << " of seed " << kSeed << ": " << piece;
    }
  }
}

TEST(Bpe, IdsAreAppendedAndAnEmptyPieceAddsNone) {
  std::mt19937 random(1);
  const Vocabulary vocabulary = make_random_vocabulary(random, 0);
  BpeEncoder encoder(vocabulary.byte_ids, vocabulary.merges);
  std::vector<int32_t> ids = {7};
  encoder.append("ab", ids);
  encoder.append("", ids);
  encoder.append("\xFF", ids);
  EXPECT_EQ(ids, std::vector<int32_t>({7, 'a', 'b', 255}));
}

}  // namespace
}  // namespace tidepool
