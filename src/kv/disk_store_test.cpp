#include "kv/disk_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/error.h"
#include "kv/store_test_support.h"

namespace tidepool::store {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

TEST_F(DiskStoreTest, WhatWasFlushedIsThereAfterReopening) {
  {
    const auto store = open_disk_store(options());
    write_chain(*store, 1, 0, 40);
    EXPECT_EQ(hits(*store, 1, 40), 40);
    EXPECT_TRUE(store->write_snapshot(test_snapshot(1, 39, 5130, 100000)));
  }
  const auto store = open_disk_store(options());
  EXPECT_EQ(store->stats().blocks, 40);
  EXPECT_EQ(hits(*store, 1, 40), 40);
  const auto snapshots = store->snapshots(test_key(1, 39));
  ASSERT_EQ(snapshots.size(), 1U);
  EXPECT_EQ(snapshots[0].length, 5130);
  const std::optional<StoredSnapshot> snapshot = store->read_snapshot(snapshots[0].key);
  ASSERT_TRUE(snapshot);
  EXPECT_EQ(snapshot->bytes, test_snapshot(1, 39, 5130, 100000).bytes);
  EXPECT_EQ(snapshot->parent, test_key(1, 39));
}

TEST_F(DiskStoreTest, OpeningRemovesWhatAKilledWriterLeft) {
  { const auto store = open_disk_store(options()); }
  const std::filesystem::path left = options().folder / "uses.log.tmp.12.0";
  write_file_atomically(left, "half");
  DiskStoreOptions reader = options();
  reader.is_read_only = true;
  { const auto store = open_disk_store(reader); }
  EXPECT_TRUE(std::filesystem::exists(left));  // it may be another process's, and not left at all
  { const auto store = open_disk_store(options()); }
  EXPECT_FALSE(std::filesystem::exists(left));
}

TEST_F(DiskStoreTest, ABlockIsWrittenOnce) {
  const auto store = open_disk_store(options());
  write_chain(*store, 1, 0, 10);
  const uint64_t once = store->stats().written_bytes;
  write_chain(*store, 1, 0, 10);
  EXPECT_EQ(store->stats().written_bytes, once);
}

TEST_F(DiskStoreTest, AnExactBlockReplacesABoundedOneAndNotTheOtherWayRound) {
  {
    const auto store = open_disk_store(options());
    ASSERT_TRUE(store->write(test_block(1, 0, kBlockBytes, true)));
    store->flush();
    EXPECT_TRUE(store->find(test_key(1, 0))->is_bounded);
    ASSERT_TRUE(store->write(test_block(1, 0, kBlockBytes, false)));
    store->flush();
    EXPECT_FALSE(store->find(test_key(1, 0))->is_bounded);
    ASSERT_TRUE(store->write(test_block(1, 0, kBlockBytes, true)));
    store->flush();
    EXPECT_FALSE(store->find(test_key(1, 0))->is_bounded);
  }
  const auto store = open_disk_store(options());
  EXPECT_FALSE(store->find(test_key(1, 0))->is_bounded);
  EXPECT_EQ(hits(*store, 1, 1), 1);
}

TEST_F(DiskStoreTest, AnExactSnapshotReplacesABoundedOneAndNotTheOtherWayRound) {
  StoredSnapshot bounded = test_snapshot(1, 0, 130, 1000);
  bounded.is_bounded = true;
  bounded.bytes = test_bytes(1000, 99);
  const StoredSnapshot exact = test_snapshot(1, 0, 130, 1000);
  const auto store = open_disk_store(options());
  for (const StoredSnapshot& snapshot : {bounded, exact, bounded}) {
    ASSERT_TRUE(store->write_snapshot(snapshot));
    store->flush();
  }
  EXPECT_EQ(store->stats().snapshots, 1);
  const std::optional<StoredSnapshot> read = store->read_snapshot(exact.key);
  ASSERT_TRUE(read);
  EXPECT_FALSE(read->is_bounded);
  EXPECT_EQ(read->bytes, exact.bytes);
}

TEST_F(DiskStoreTest, ChildrenFollowTheirParent) {
  {
    const auto store = open_disk_store(options());
    write_chain(*store, 1, 0, 3);
    StoredBlock other = test_block(2, 0, kBlockBytes);
    other.parent = test_key(1, 1);
    other.index = 2;
    ASSERT_TRUE(store->write(other));
  }
  const auto store = open_disk_store(options());
  EXPECT_THAT(store->children(test_key(1, 0), 8), ElementsAre(test_key(1, 1)));
  EXPECT_THAT(store->children(test_key(1, 1), 8), UnorderedElementsAre(test_key(1, 2), test_key(2, 0)));
  EXPECT_EQ(store->children(test_key(1, 1), 1).size(), 1U);
  EXPECT_TRUE(store->children(test_key(1, 2), 8).empty());
}

TEST_F(DiskStoreTest, FolderAndFilesAreTheOwnersAlone) {
  const auto store = open_disk_store(options());
  write_chain(*store, 1, 0, 2);
  store->touch(test_key(1, 1));
  *clock_.time += 100;
  store->touch(test_key(1, 1));
  store->flush();
  struct stat status {};
  ASSERT_EQ(::stat((folder_.path() / "kv").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
  EXPECT_EQ(files().size(), 3U);  // LOCK, blocks, uses
  for (const std::filesystem::path& file : files()) {
    ASSERT_EQ(::stat(file.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0600U) << file;
  }
}

TEST_F(DiskStoreTest, ASecondOwnerIsToldWhoTheFirstIs) {
  const auto store = open_disk_store(options());
  try {
    const auto second = open_disk_store(options());
    FAIL() << "two owners";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(error.what(), HasSubstr("process " + std::to_string(::getpid())));
    EXPECT_THAT(error.what(), HasSubstr("--kv-read-only"));
  }
}

TEST_F(DiskStoreTest, ReadOnlyReadsBesideTheOwnerAndWritesNothing) {
  const auto owner = open_disk_store(options());
  write_chain(*owner, 1, 0, 10);
  DiskStoreOptions read_only = options();
  read_only.is_read_only = true;
  const std::vector<std::filesystem::path> before = files();
  const auto reader = open_disk_store(read_only);
  EXPECT_EQ(hits(*reader, 1, 10), 10);
  EXPECT_FALSE(reader->write(test_block(1, 10, kBlockBytes)));
  reader->touch(test_key(1, 9));
  reader->flush();
  EXPECT_EQ(files(), before);
}

TEST_F(DiskStoreTest, LimitsThatCannotWorkAreRefused) {
  DiskStoreOptions small = options();
  small.capacity_bytes = 1000;
  EXPECT_THROW((void)open_disk_store(small), Error);
  DiskStoreOptions timeless = options();
  timeless.ttl = std::chrono::seconds(0);
  EXPECT_THROW((void)open_disk_store(timeless), Error);
}

TEST_F(DiskStoreTest, ReadOnlyNeedsAFolder) {
  DiskStoreOptions read_only = options();
  read_only.is_read_only = true;
  EXPECT_THROW((void)open_disk_store(read_only), Error);
}

TEST_F(DiskStoreTest, WhatDoesNotFitIntoTheQueueIsDroppedAndCounted) {
  DiskStoreOptions narrow = options();
  narrow.queue_bytes = 2 * kBlockBytes;
  const auto store = open_disk_store(narrow);
  int64_t taken = 0;
  for (int64_t i = 0; i < 2000; ++i)
    taken += store->write(test_block(1, i, kBlockBytes)) ? 1 : 0;
  store->flush();
  EXPECT_EQ(store->stats().blocks, taken);
  EXPECT_EQ(store->stats().dropped_writes, static_cast<uint64_t>(2000 - taken));
}

TEST_F(DiskStoreTest, CompressedBlocksReadBackTheSame) {
  DiskStoreOptions compressing = options();
  compressing.compresses = true;
  const auto store = open_disk_store(compressing);
  StoredBlock block = test_block(1, 0, 100000);
  KvBlock low(100000);  // four bits of eight: halves
  for (size_t i = 0; i < low.size(); ++i)
    low[i] = (*block.data)[i] & std::byte{0x0f};
  block.data = std::make_shared<const KvBlock>(low.copy());
  ASSERT_TRUE(store->write(block));
  ASSERT_TRUE(store->write(test_block(1, 1, 100000)));  // random: stays as it is
  store->flush();
  EXPECT_LT(file_bytes(), 170000U);
  const std::vector<BlockKey> keys = test_chain(1, 2);
  const auto results = store->read(keys);
  ASSERT_TRUE(results[0].block && results[1].block);
  EXPECT_TRUE(same_block(*results[0].block, block));
  EXPECT_TRUE(same_block(*results[1].block, test_block(1, 1, 100000)));
}

TEST_F(DiskStoreTest, BlocksOfOtherSizesLieBesideEachOther) {
  const auto store = open_disk_store(options());
  write_chain(*store, 1, 0, 5, 1000);
  write_chain(*store, 2, 0, 5, 113920);
  EXPECT_EQ(hits(*store, 1, 5, 1000), 5);
  EXPECT_EQ(hits(*store, 2, 5, 113920), 5);
}

TEST_F(DiskStoreTest, AUseKeepsAWholeChainThroughARestart) {
  {
    const auto store = open_disk_store(options());
    write_chain(*store, 1, 0, 5);
    write_chain(*store, 2, 0, 5);
    *clock_.time += int64_t{70} * 3600;
    store->touch(test_key(1, 4));
  }
  *clock_.time += int64_t{10} * 3600;
  const auto store = open_disk_store(options());
  EXPECT_EQ(hits(*store, 1, 5), 5);
  EXPECT_EQ(hits(*store, 2, 5), 0);
  EXPECT_EQ(store->absence(test_key(2, 0)), Absence::kExpired);
  EXPECT_EQ(store->absence(test_key(3, 0)), Absence::kNeverSeen);
}

TEST_F(DiskStoreTest, AClockThatWentBackNeitherExpiresNorKeepsForEver) {
  {
    const auto store = open_disk_store(options());
    write_chain(*store, 1, 0, 5);
  }
  *clock_.time -= int64_t{1000} * 3600;
  {
    const auto store = open_disk_store(options());
    EXPECT_EQ(hits(*store, 1, 5), 5);
    store->touch(test_key(1, 4));
  }
  *clock_.time += int64_t{73} * 3600;  // from when the clock went back, not from the time written
  const auto store = open_disk_store(options());
  EXPECT_EQ(hits(*store, 1, 5), 0);
}

}  // namespace
}  // namespace tidepool::store
