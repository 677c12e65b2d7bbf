// What can happen to a folder, done to it: a lost hit is allowed where the damage is, a wrong answer never.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "base/error.h"
#include "base/faulty_file_system.h"
#include "kv/store_maintenance.h"
#include "kv/store_segment.h"
#include "kv/store_test_support.h"

namespace tidepool::store {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// Small segments, so that a few blocks make a folder with all kinds of files.
constexpr uint64_t kFewBlocksCapacity = uint64_t{8} << 20;
constexpr int64_t kBlocks = 120;

class DiskStoreFaultTest : public DiskStoreTest {
 protected:
  [[nodiscard]] DiskStoreOptions small_options() const {
    DiskStoreOptions result = options();
    result.capacity_bytes = kFewBlocksCapacity;
    result.snapshot_capacity_bytes = kFewBlocksCapacity;
    return result;
  }
  /// A closed segment of blocks with its list, an open one, one of snapshots, a file of uses.
  void fill() {
    const auto store = open_disk_store(small_options());
    write_chain(*store, 1, 0, kBlocks);
    *clock_.time += 100;
    store->touch(test_key(1, kBlocks - 1));
    for (int64_t i = 0; i < 3; ++i)
      ASSERT_TRUE(store->write_snapshot(test_snapshot(1, kBlocks - 1, 20000 + i, 5000)));
    store->flush();
  }
  [[nodiscard]] fs::path kv() const { return folder_.path() / "kv"; }
  [[nodiscard]] fs::path only(const std::string& prefix) const {
    for (const fs::path& file : files()) {
      if (file.filename().string().starts_with(prefix)) return file;
    }
    return {};
  }
  /// Of a file before anything was done to it.
  [[nodiscard]] uint64_t original_bytes(const std::string& name) const {
    const fs::path original = folder_.path() / "original" / name;
    return fs::file_size(fs::exists(original) ? original : kv() / name);
  }
  static void flip(const fs::path& file, uint64_t byte, int bit) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(byte));
    const int value = stream.get();
    stream.seekp(static_cast<std::streamoff>(byte));
    stream.put(static_cast<char>(value ^ (1 << bit)));
  }
  /// Snapshots that are found and read as they were written.
  static int64_t snapshot_hits(BlockStore& store) {
    int64_t found = 0;
    for (const BlockStore::SnapshotInfo& info : store.snapshots(test_key(1, kBlocks - 1))) {
      const std::optional<StoredSnapshot> snapshot = store.read_snapshot(info.key);
      if (!snapshot) continue;
      ++found;
      EXPECT_EQ(snapshot->bytes, test_snapshot(1, kBlocks - 1, info.length, 5000).bytes) << "a wrong answer";
    }
    return found;
  }
  /// Does `damage` to a copy of the folder, opens the copy, and says how many blocks and snapshots were lost. The copy
  /// must then take new blocks like any other.
  template <typename Damage>
  int64_t lost_after(Damage damage) {
    const fs::path original = folder_.path() / "original";
    if (!fs::exists(original)) fs::rename(kv(), original);
    fs::remove_all(kv());
    fs::copy(original, kv());
    damage();
    const auto store = open_disk_store(small_options());
    const int64_t lost = kBlocks - hits(*store, 1, kBlocks) + 3 - snapshot_hits(*store);
    write_chain(*store, 2, 0, 3);
    EXPECT_EQ(hits(*store, 2, 3), 3);
    return lost;
  }
};

TEST_F(DiskStoreFaultTest, AFlippedBitInAnyFileCostsOneRecordAndIsFoundByVerify) {
  fill();
  ASSERT_TRUE(verify_store(kv()).damages.empty());
  const std::vector<fs::path> all = files();
  ASSERT_EQ(all.size(), 5U);  // LOCK, two of blocks, snapshots, uses
  uint64_t random = 12345;
  for (const fs::path& file : all) {
    const std::string name = file.filename();
    const uint64_t size = original_bytes(name);
    for (int i = 0; i < 40; ++i) {
      random = random * 6364136223846793005U + 1442695040888963407U;
      // The beginnings and ends of files are where most of the structure is.
      const uint64_t byte = i < 10   ? (random >> 20) % std::min<uint64_t>(size, 200)
                            : i < 20 ? size - 1 - (random >> 20) % std::min<uint64_t>(size, 200)
                                     : (random >> 20) % size;
      const int64_t lost = lost_after([&] {
        flip(kv() / name, byte, static_cast<int>(random >> 60) % 8);
        EXPECT_EQ(verify_store(kv()).damages.empty(), name == "LOCK") << name << " byte " << byte;
      });
      EXPECT_LE(lost, 1) << name << " byte " << byte;
    }
  }
}

TEST_F(DiskStoreFaultTest, ATruncatedFileCostsWhatWasBehindTheCut) {
  fill();
  for (const fs::path& file : files()) {
    const std::string name = file.filename();
    if (name == "LOCK") continue;
    const uint64_t size = original_bytes(name);
    for (const uint64_t keep :
         {uint64_t{0}, uint64_t{1}, uint64_t{63}, uint64_t{64}, uint64_t{200}, size / 2, size - 1}) {
      const int64_t lost = lost_after([&] { fs::resize_file(kv() / name, keep); });
      const auto behind = static_cast<int64_t>((size - keep) / kBlockBytes) + 2;
      EXPECT_LE(lost, behind) << name << " cut at " << keep;
    }
  }
}

TEST_F(DiskStoreFaultTest, MissingFilesCostWhatWasInThem) {
  fill();
  for (const fs::path& file : files()) {
    const std::string name = file.filename();
    const int64_t lost = lost_after([&] { fs::remove(kv() / name); });
    EXPECT_LE(lost, name.starts_with("blocks") ? 90 : name.starts_with("snap") ? 3 : 0) << name;
  }
}

TEST_F(DiskStoreFaultTest, FilesOfAnotherVersionAreLeftAlone) {
  fill();
  const std::string name = only("blocks-").filename();
  const auto make_foreign = [&] {
    std::array<std::byte, 64> header{};
    const int descriptor = ::open((kv() / name).c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(::pread(descriptor, header.data(), header.size(), 0), 64);
    header[8] = std::byte{2};
    const Checksum checksum = checksum_of(std::span(header).first(48));
    std::memcpy(header.data() + 48, checksum.data(), checksum.size());
    ASSERT_EQ(::pwrite(descriptor, header.data(), header.size(), 0), 64);
    ::close(descriptor);
    const StoreVerification result = verify_store(kv());
    EXPECT_TRUE(result.damages.empty());
    EXPECT_EQ(result.foreign.size(), 1U);
  };
  EXPECT_GT(lost_after(make_foreign), 0);
  EXPECT_TRUE(fs::exists(kv() / name));
  EXPECT_EQ(summarize_store(kv()).unusable_segments, 1);
}

TEST_F(DiskStoreFaultTest, GarbageOfAnyNameIsNoReasonNotToOpen) {
  fill();
  const int64_t lost = lost_after([&] {
    std::ofstream(kv() / "blocks-000000ff.seg") << std::string(100000, '\x5a');
    std::ofstream(kv() / "blocks-zzz.seg") << "x";
    std::ofstream(kv() / "snapshots-00000010.seg") << "";
    fs::create_directory(kv() / "blocks-00000050.seg");
    std::ofstream(kv() / "notes.txt") << "mine";
  });
  EXPECT_EQ(lost, 0);
  EXPECT_TRUE(fs::exists(kv() / "notes.txt"));
}

TEST_F(DiskStoreFaultTest, FilesRemovedWhileOpenAreMisses) {
  const auto store = open_disk_store(small_options());
  write_chain(*store, 1, 0, kBlocks);
  for (const fs::path& file : files()) {
    if (file.filename() != "LOCK") fs::remove(file);
  }
  EXPECT_EQ(hits(*store, 1, kBlocks), 0);
  EXPECT_EQ(store->absence(test_key(1, 0)), Absence::kEvicted);
  EXPECT_FALSE(store->find(test_key(1, 0)));
}

TEST_F(DiskStoreFaultTest, AFullDiskDropsAndRecovers) {
  FaultyFileSystem disk({.disk_bytes = 100 * kBlockBytes});
  DiskStoreOptions full = options();
  full.files = &disk;
  {
    const auto store = open_disk_store(full);
    for (int64_t i = 0; i < 200; ++i)
      ASSERT_TRUE(store->write(test_block(1, i, kBlockBytes)));  // nobody waits, nobody is told
    store->flush();
    const BlockStore::Stats stats = store->stats();
    EXPECT_GT(stats.dropped_writes, 100U);
    EXPECT_THAT(stats.last_error, HasSubstr("No space left"));
    EXPECT_EQ(hits(*store, 1, 200), stats.blocks);
    EXPECT_GT(stats.blocks, 60);
    EXPECT_THAT(store->take_lost(),
                testing::IsEmpty());  // it would not take them now either
    disk.plan = {};                   // somebody made room
    write_chain(*store, 1, 150, 200);
    EXPECT_EQ(store->take_lost().size(), stats.dropped_writes);
    EXPECT_THAT(store->take_lost(), testing::IsEmpty());
    EXPECT_EQ(store->stats().last_error, "");
    for (int64_t i = 150; i < 200; ++i)
      EXPECT_TRUE(store->find(test_key(1, i)));
  }
  const auto store = open_disk_store(options());
  EXPECT_GT(hits(*store, 1, 200), 110);
  EXPECT_TRUE(verify_store(kv()).damages.empty());
}

TEST_F(DiskStoreFaultTest, WhatCouldNotBeSyncedIsNotAcknowledged) {
  FaultyFileSystem disk({.sync_fails = true});
  DiskStoreOptions failing = options();
  failing.files = &disk;
  const auto store = open_disk_store(failing);
  write_chain(*store, 1, 0, 10);
  EXPECT_EQ(hits(*store, 1, 10), 0);
  EXPECT_NE(store->stats().last_error, "");
  disk.plan = {};
  write_chain(*store, 1, 10, 11);
  EXPECT_THAT(store->take_lost(), testing::UnorderedElementsAreArray(test_chain(1, 10)));
  write_chain(*store, 1, 0, 10);
  EXPECT_EQ(hits(*store, 1, 10), 10);
}

TEST_F(DiskStoreFaultTest, ABadMediumIsAMissAndCounted) {
  FaultyFileSystem disk({});
  DiskStoreOptions failing = options();
  failing.files = &disk;
  const auto store = open_disk_store(failing);
  write_chain(*store, 1, 0, 10);
  disk.plan.bad_offset = 5 * kBlockBytes;
  const int64_t found = hits(*store, 1, 10);
  EXPECT_LT(found, 10);
  EXPECT_EQ(store->stats().failed_reads, static_cast<uint64_t>(10 - found));
  EXPECT_EQ(store->stats().bad_records, 0U);
  EXPECT_TRUE(store->find(test_key(1, 9)));  // the next read may succeed
  const uint64_t once = store->stats().written_bytes;
  write_chain(*store, 1, 0,
              10);  // what could not be read, and nothing else, is written again
  EXPECT_EQ(store->stats().written_bytes - once, once / 10 * static_cast<uint64_t>(10 - found));
  disk.plan = {};
  EXPECT_EQ(hits(*store, 1, 10), 10);
}

TEST_F(DiskStoreFaultTest, ShortReadsAndWritesAreGoneOnWith) {
  FaultyFileSystem disk({.read_bytes_max = 1000, .write_bytes_max = 777});
  DiskStoreOptions slow = options();
  slow.files = &disk;
  const auto store = open_disk_store(slow);
  write_chain(*store, 1, 0, 5);
  (void)hits(*store, 1, 5);  // a direct read that stops within a unit may be given up, never misread
  EXPECT_EQ(store->stats().last_error, "");
  DiskStoreOptions beside = options();
  beside.is_read_only = true;
  EXPECT_EQ(hits(*open_disk_store(beside), 1, 5), 5);
}

TEST_F(DiskStoreFaultTest, AFolderThatMayNotBeWrittenIsRefusedWithTheWayOut) {
  std::ofstream(kv()) << "a file where the folder should be";
  try {
    (void)open_disk_store(options());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), HasSubstr("not a folder"));
  }
}

}  // namespace
}  // namespace tidepool::store
