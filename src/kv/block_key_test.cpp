#include "kv/block_key.h"

#include <gtest/gtest.h>

#include <set>

#include "kv/kv_test_support.h"

namespace tidepool {
namespace {

using kv_testing::random_tokens;

const CacheDomain kDomain{Digest{std::byte{1}}, "salt"};

/// The empty text's digest is published in FIPS 180-2's examples and everywhere since.
TEST(Sha256, KnowsTheEmptyText) {
  const Digest digest = sha256({});
  EXPECT_EQ(digest[0], std::byte{0xe3});
  EXPECT_EQ(digest[1], std::byte{0xb0});
  EXPECT_EQ(digest[31], std::byte{0x55});
}

TEST(FieldHasher, FieldsDoNotRunIntoEachOther) {
  std::set<Digest> digests;
  digests.insert(FieldHasher("a").add(std::string_view("b")).add(std::string_view("c")).finish());
  digests.insert(FieldHasher("a").add(std::string_view("bc")).add(std::string_view("")).finish());
  digests.insert(FieldHasher("a").add(std::string_view("")).add(std::string_view("bc")).finish());
  digests.insert(FieldHasher("ab").add(std::string_view("c")).finish());
  digests.insert(FieldHasher("a").add(int64_t{1}).finish());
  digests.insert(FieldHasher("a").finish());
  EXPECT_EQ(digests.size(), 6U);
}

TEST(BlockKey, ChainDependsOnEveryTokenBefore) {
  const std::vector<InputToken> tokens = random_tokens(400, 1);
  const std::vector<BlockKey> chain = block_chain(kDomain, {tokens, {}});
  ASSERT_EQ(chain.size(), 3U);
  for (const size_t at : {size_t{0}, size_t{127}, size_t{128}, size_t{383}}) {
    std::vector<InputToken> other = tokens;
    other[at].id += 1;
    const std::vector<BlockKey> changed = block_chain(kDomain, {other, {}});
    for (size_t block = 0; block < 3; ++block)
      EXPECT_EQ(changed[block] == chain[block], block < at / 128) << at << " " << block;
  }
  std::vector<InputToken> image = tokens;
  image[5].is_image = true;
  EXPECT_NE(block_chain(kDomain, {image, {}})[0], chain[0]);
}

TEST(BlockKey, DomainsShareNothing) {
  const std::vector<InputToken> tokens = random_tokens(128, 1);
  std::set<BlockKey> keys;
  for (const CacheDomain& domain : {kDomain, CacheDomain{kDomain.model, ""}, CacheDomain{kDomain.model, "salt "},
                                    CacheDomain{Digest{std::byte{2}}, "salt"}}) {
    keys.insert(root_key(domain));
    keys.insert(block_chain(domain, {tokens, {}}).front());
  }
  EXPECT_EQ(keys.size(), 8U);
}

/// All image positions carry one id, so the picture and its place must be in the key of every block they touch.
TEST(BlockKey, ImagesCountInEveryBlockTheyTouch) {
  const std::vector<InputToken> tokens(384, InputToken{7, true});
  const std::vector<ImageSpan> images = {{100, 140, Digest{std::byte{1}}}};
  const std::vector<BlockKey> chain = block_chain(kDomain, {tokens, images});
  std::vector<ImageSpan> other = images;
  other[0].digest[31] = std::byte{5};
  const std::vector<BlockKey> repainted = block_chain(kDomain, {tokens, other});
  EXPECT_NE(repainted[0], chain[0]);
  EXPECT_NE(repainted[1], chain[1]);
  const std::vector<ImageSpan> moved = {{101, 141, images[0].digest}};
  EXPECT_NE(block_chain(kDomain, {tokens, moved})[0], chain[0]);
}

TEST(BlockKey, SnapshotKeysTellLengthAndTailApart) {
  const std::vector<InputToken> tokens = random_tokens(300, 1);
  const BlockKey parent = block_chain(kDomain, {tokens, {}}).back();
  std::set<BlockKey> keys;
  for (int64_t length = 256; length <= 300; ++length)
    keys.insert(snapshot_key(parent, {tokens, {}}, length));
  std::vector<InputToken> other = tokens;
  other[299].id += 1;
  keys.insert(snapshot_key(parent, {other, {}}, 300));
  keys.insert(parent);
  EXPECT_EQ(keys.size(), 47U);
}

}  // namespace
}  // namespace tidepool
