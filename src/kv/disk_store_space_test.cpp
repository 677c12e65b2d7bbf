// What the capacity means: bytes of files, and who goes first.

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "base/error.h"
#include "kv/store_maintenance.h"
#include "kv/store_test_support.h"

namespace tidepool::store {
namespace {

constexpr uint64_t kSmallCapacity = uint64_t{8} << 20;

class DiskStoreSpaceTest : public DiskStoreTest {
 protected:
  [[nodiscard]] DiskStoreOptions small_options() const {
    DiskStoreOptions result = options();
    result.capacity_bytes = kSmallCapacity;
    result.snapshot_capacity_bytes = kSmallCapacity;
    return result;
  }
  [[nodiscard]] uint64_t bytes_of(const std::string& prefix) const {
    uint64_t sum = 0;
    for (const std::filesystem::path& file : files()) {
      if (file.filename().string().starts_with(prefix)) sum += std::filesystem::file_size(file);
    }
    return sum;
  }
  void wait_a_minute() { *clock_.time += 60; }
};

TEST_F(DiskStoreSpaceTest, FilesNeverTakeMoreThanTheCapacityAndMostOfItIsUsed) {
  const auto store = open_disk_store(small_options());
  for (uint64_t chain = 0; chain < 60; ++chain) {
    write_chain(*store, chain, 0, 100);
    wait_a_minute();
    if (chain % 3 == 0) store->touch(test_key(0, 99));
    ASSERT_LE(bytes_of("blocks"), kSmallCapacity);
  }
  EXPECT_GE(static_cast<double>(store->stats().blocks) * (kBlockBytes + 700), 0.75 * kSmallCapacity);
  EXPECT_EQ(hits(*store, 59, 100), 100);
  EXPECT_EQ(hits(*store, 0, 100), 100) << "used again and again";
  EXPECT_EQ(hits(*store, 1, 100), 0);
  EXPECT_EQ(store->absence(test_key(1, 0)), Absence::kEvicted);
  EXPECT_EQ(store->stats().bad_records, 0U);
}

TEST_F(DiskStoreSpaceTest, TheTailOfAChainGoesBeforeItsHead) {
  const auto store = open_disk_store(small_options());
  write_chain(*store, 1, 0, 1800);
  wait_a_minute();
  write_chain(*store, 2, 0, 900);
  const std::vector<BlockKey> keys = test_chain(1, 1800);
  size_t kept = 0;
  while (kept < keys.size() && store->find(keys[kept]))
    ++kept;
  EXPECT_GT(kept, 500U);
  EXPECT_LT(kept, 1800U);
  for (size_t i = kept; i < keys.size(); ++i)
    EXPECT_FALSE(store->find(keys[i])) << "behind the cut at " << kept << ": " << i;
}

TEST_F(DiskStoreSpaceTest, ExpiredBlocksGoBeforeOthers) {
  const auto store = open_disk_store(small_options());
  write_chain(*store, 1, 0, 600);
  *clock_.time += int64_t{73} * 3600;
  write_chain(*store, 2, 0, 1500);
  EXPECT_EQ(hits(*store, 2, 1500), 1500);
  EXPECT_EQ(store->absence(test_key(1, 0)), Absence::kExpired);
}

TEST_F(DiskStoreSpaceTest, ReclaimedSegmentsSurviveARestart) {
  {
    const auto store = open_disk_store(small_options());
    for (uint64_t chain = 0; chain < 40; ++chain) {
      write_chain(*store, chain, 0, 100);
      wait_a_minute();
      store->touch(test_key(chain / 4 * 4, 99));
      store->flush();
    }
  }
  EXPECT_TRUE(verify_store(folder_.path() / "kv").damages.empty());
  const auto store = open_disk_store(small_options());
  EXPECT_EQ(hits(*store, 39, 100), 100);
  EXPECT_LE(bytes_of("blocks"), kSmallCapacity);
}

TEST_F(DiskStoreSpaceTest, ReadersGetTheirBlocksWhileSegmentsAreReclaimed) {
  const auto store = open_disk_store(small_options());
  write_chain(*store, 1000, 0, 200);
  std::jthread writer([&](const std::stop_token& stop) {
    for (uint64_t chain = 0; !stop.stop_requested(); ++chain) {
      for (int64_t i = 0; i < 100; ++i)
        store->write(test_block(chain, i, kBlockBytes));
      store->touch(test_key(1000, 199));
    }
  });
  for (int round = 0; round < 12; ++round) {
    *clock_.time += 1;
    store->touch(test_key(1000, 199));
    EXPECT_EQ(hits(*store, 1000, 200), 200);
  }
}

TEST_F(DiskStoreSpaceTest, TheNewestSnapshotOfASessionOutlivesOlderOnes) {
  const auto store = open_disk_store(small_options());
  write_chain(*store, 1, 0, 50);
  write_chain(*store, 2, 0, 50);
  // The first session's newest is the oldest of all; the second session has many.
  ASSERT_TRUE(store->write_snapshot(test_snapshot(1, 49, 6400, 200000)));
  store->flush();
  for (int64_t i = 0; i < 49; ++i) {
    wait_a_minute();
    if (i > 0) {  // it goes on from the one before
      ASSERT_TRUE(store->read_snapshot(test_snapshot(2, i - 1, i * 128 + 2, 1).key));
    }
    ASSERT_TRUE(store->write_snapshot(test_snapshot(2, i, i * 128 + 130, 200000)));
    // Another agent of the same beginning parts from it within a block; it
    // waits.
    if (i == 5) {
      ASSERT_TRUE(store->write_snapshot(test_snapshot(2, 5, 5 * 128 + 200, 200000)));
    }
    store->flush();
    ASSERT_LE(bytes_of("snapshots"), kSmallCapacity);
  }
  EXPECT_TRUE(store->read_snapshot(test_snapshot(1, 49, 6400, 1).key));
  EXPECT_TRUE(store->read_snapshot(test_snapshot(2, 5, 5 * 128 + 200, 1).key));
  EXPECT_TRUE(store->read_snapshot(test_snapshot(2, 48, 48 * 128 + 130, 1).key));
  EXPECT_FALSE(store->read_snapshot(test_snapshot(2, 0, 130, 1).key));
}

TEST_F(DiskStoreSpaceTest, ARecordThatCannotFitIsRefusedAndSaid) {
  const auto store = open_disk_store(small_options());
  ASSERT_TRUE(store->write_snapshot(test_snapshot(1, 0, 1, kSmallCapacity / 2)));
  store->flush();
  EXPECT_EQ(store->stats().dropped_writes, 1U);
  EXPECT_NE(store->stats().last_error.find("--snapshot-disk"), std::string::npos);
}

TEST_F(DiskStoreSpaceTest, TrimAppliesLimitsNow) {
  {
    const auto store = open_disk_store(options());  // 64 MiB
    write_chain(*store, 1, 0, 2000);
    *clock_.time += 3600;
    write_chain(*store, 2, 0, 2000);
  }
  EXPECT_GT(trim_store(small_options()), 0U);
  EXPECT_LE(bytes_of("blocks"), kSmallCapacity);
  DiskStoreOptions short_lived = small_options();
  short_lived.ttl = std::chrono::seconds(10);
  *clock_.time += 100;
  EXPECT_GT(trim_store(short_lived), 0U);
  EXPECT_LT(bytes_of("blocks"), kSmallCapacity / 16);
  const auto store = open_disk_store(options());
  EXPECT_THROW((void)trim_store(small_options()), Error);  // it has an owner
}

TEST_F(DiskStoreSpaceTest, ClearLeavesNothingAndRefusesWhileOwned) {
  {
    const auto store = open_disk_store(options());
    write_chain(*store, 1, 0, 10);
    EXPECT_THROW((void)clear_store(folder_.path() / "kv"), Error);
  }
  EXPECT_GT(clear_store(folder_.path() / "kv"), 10 * kBlockBytes);
  EXPECT_EQ(summarize_store(folder_.path() / "kv").disk_bytes, 0U);
  EXPECT_EQ(open_disk_store(options())->stats().blocks, 0);
}

TEST_F(DiskStoreSpaceTest, StatSaysWhatIsThereBesideAnOwner) {
  const auto store = open_disk_store(options());
  write_chain(*store, 1, 0, 10);
  const StoreSummary summary = summarize_store(folder_.path() / "kv");
  EXPECT_EQ(summary.blocks, 10);
  EXPECT_EQ(summary.owner, "process " + std::to_string(::getpid()));
  EXPECT_EQ(summary.disk_bytes, store->stats().disk_bytes);
  EXPECT_EQ(summary.oldest_use, summary.newest_use);
}

}  // namespace
}  // namespace tidepool::store
