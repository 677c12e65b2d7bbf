#include "kv/snapshot_pool.h"

#include <gtest/gtest.h>

#include <cstring>

namespace tidepool {
namespace {

using Time = SnapshotPool::Time;

SnapshotPool::Snapshot snapshot_of(uint64_t number, size_t bytes, bool is_bounded = false) {
  SnapshotPool::Snapshot snapshot;
  std::memcpy(snapshot.key.digest.data(), &number, sizeof number);
  snapshot.info.length = 1;
  snapshot.info.marks.is_bounded = is_bounded;
  snapshot.info.tail = {{static_cast<int32_t>(number), false}};
  snapshot.bytes = std::make_shared<const std::vector<std::byte>>(bytes);
  return snapshot;
}

SnapshotPool::Gone add(SnapshotPool& pool, SnapshotPool::Snapshot snapshot) {
  const std::vector<InputToken> tokens = snapshot.info.tail;
  const BlockKey root;
  return pool.add(std::move(snapshot), {tokens, {}}, {&root, 1}, Time{});
}

TEST(SnapshotPool, ALargerOneUnderTheSameKeyKeepsTheLimit) {
  SnapshotPool pool(1000, std::chrono::seconds(60));
  EXPECT_TRUE(add(pool, snapshot_of(1, 400, true)).empty());
  EXPECT_TRUE(add(pool, snapshot_of(2, 500)).empty());
  const SnapshotPool::Gone gone = add(pool, snapshot_of(1, 600));
  ASSERT_EQ(gone.size(), 1U);
  EXPECT_EQ(gone[0]->key, snapshot_of(2, 1).key);
  EXPECT_EQ(pool.bytes(), 600U);
  EXPECT_EQ(pool.count(), 1);
}

TEST(SnapshotPool, ABoundedOneDoesNotReplaceAnExactOne) {
  SnapshotPool pool(1000, std::chrono::seconds(60));
  (void)add(pool, snapshot_of(1, 400));
  (void)add(pool, snapshot_of(1, 500, true));
  EXPECT_EQ(pool.bytes(), 400U);
}

TEST(SnapshotPool, WhatIsLargerThanThePoolIsHandedBackAtOnce) {
  SnapshotPool pool(100, std::chrono::seconds(60));
  EXPECT_EQ(add(pool, snapshot_of(1, 101)).size(), 1U);
  EXPECT_EQ(pool.count(), 0);
}

}  // namespace
}  // namespace tidepool
