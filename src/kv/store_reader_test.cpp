#include "kv/store_reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <new>

#include "base/error.h"
#include "kv/store_test_support.h"

namespace tidepool::store {
namespace {

TEST(ReadPool, HelpersWorkAtTheSameTimeAsTheCaller) {
  ReadPool pool(3);
  ASSERT_EQ(pool.threads(), 3U);
  std::atomic<int> calls = 0;
  std::barrier all(4);  // passed only when all four are there
  pool.run(
      [&] {
        all.arrive_and_wait();
        ++calls;
      },
      8);
  EXPECT_EQ(calls, 4);
}

TEST(ReadPool, WithoutThreadsTheCallerDoesAll) {
  ReadPool pool(0);
  int calls = 0;
  pool.run([&] { ++calls; }, 8);
  EXPECT_EQ(calls, 1);
}

TEST(ReadPool, SeveralCallersShareIt) {
  ReadPool pool(2);
  std::atomic<int> sum = 0;
  std::vector<std::jthread> callers;
  callers.reserve(4);
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        std::atomic<int> left = 20;
        pool.run(
            [&] {
              while (left.fetch_sub(1) > 0)
                ++sum;
            },
            7);
      }
    });
  callers.clear();
  EXPECT_EQ(sum, 4 * 50 * 20);
}

/// Memory that is not there for one record costs that record's read.
TEST(ReadRecords, NoMemoryIsAFailedRead) {
  const TempFolder folder;
  ReadPool pool(0);
  const ReaderOptions options{
      .files = real_file_system(), .path = [&](uint32_t) { return folder.path() / "none"; }, .pool = pool};
  const std::vector<RecordRequest> requests = {{test_key(1, 0), {1, 64, 192}}, {test_key(1, 1), {2, 64, 192}}};
  std::vector<ReadOutcome> outcomes(2, ReadOutcome::kRead);
  bool has_memory = false;
  read_records(options, requests, [&](size_t index, ReadOutcome outcome, const RecordView*) {
    outcomes[index] = outcome;
    if (!std::exchange(has_memory, true)) throw std::bad_alloc();
  });
  EXPECT_EQ(outcomes[0], ReadOutcome::kFailed);
  EXPECT_EQ(outcomes[1], ReadOutcome::kGone);
}

/// Files that cannot be opened for a while, as when a process has no
/// descriptors left.
class NoDescriptors final : public FileSystem {
 public:
  std::unique_ptr<File> open(const std::filesystem::path& path, Mode mode) override {
    if (is_exhausted && mode == Mode::kRead) throw Error(ErrorCode::kIo, path.string() + ": Too many open files");
    return real_file_system().open(path, mode);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    real_file_system().rename(from, to);
  }
  void remove(const std::filesystem::path& path) override { real_file_system().remove(path); }
  void sync_folder(const std::filesystem::path& folder) override { real_file_system().sync_folder(folder); }

  std::atomic<bool> is_exhausted = false;
};

using StoreReaderTest = DiskStoreTest;

TEST_F(StoreReaderTest, WithoutDescriptorsReadsAreMissesAndNothingIsForgotten) {
  NoDescriptors files;
  DiskStoreOptions limited = options();
  limited.files = &files;
  const auto store = open_disk_store(limited);
  write_chain(*store, 1, 0, 20);
  ASSERT_TRUE(store->write_snapshot(test_snapshot(1, 19, 2570, 5000)));
  store->flush();
  files.is_exhausted = true;
  EXPECT_EQ(hits(*store, 1, 20), 0);
  EXPECT_EQ(store->read({test_chain(1, 1)})[0].absence, Absence::kUnreadable);
  EXPECT_FALSE(store->read_snapshot(test_snapshot(1, 19, 2570, 1).key));
  EXPECT_EQ(store->stats().failed_reads, 22U);
  EXPECT_EQ(store->stats().bad_records, 0U);
  EXPECT_EQ(store->stats().blocks, 20);
  files.is_exhausted = false;
  EXPECT_EQ(hits(*store, 1, 20), 20);
  EXPECT_TRUE(store->read_snapshot(test_snapshot(1, 19, 2570, 1).key));
}

}  // namespace
}  // namespace tidepool::store
