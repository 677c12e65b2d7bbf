#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/file.h"
#include "kv/block_store.h"
#include "kv/store_family.h"
#include "kv/store_uses.h"

namespace tidepool::store {

struct WriterOptions {
  FileSystem& files;
  std::filesystem::path folder;
  FamilyLog& blocks;
  FamilyLog& snapshots;
  std::chrono::seconds ttl{};
  uint64_t queue_bytes = 0;
  bool compresses = false;
  std::vector<RowRun> rows;      ///< of blocks
  std::function<int64_t()> now;  ///< seconds since 1970
  bool rewrites_uses = false;    ///< the file of uses does not say what the indexes do
};

/// The one thread that writes to a store, and the queue before it. Nobody waits for the disk but in flush(). What the
/// disk refuses is dropped and counted, and the next is tried again. Thread-safe.
class StoreWriter {
 public:
  explicit StoreWriter(WriterOptions options);
  /// Writes what is queued, and syncs.
  ~StoreWriter();
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  /// False, and counted, when the queue is full.
  bool write(StoredBlock block);
  bool write(StoredSnapshot snapshot);
  /// The disk should learn that the chain ending in `key` was used.
  void note_use(const BlockKey& key);
  /// Waits until all that was queued before is on the medium or refused by it.
  void flush();

  struct Stats {
    uint64_t written_bytes = 0;
    uint64_t dropped_writes = 0;
    uint64_t uses_bytes = 0;
    uint64_t queued = 0;
    std::string last_error;
  };
  [[nodiscard]] Stats stats() const;

 private:
  struct Barrier {
    uint64_t ticket = 0;
  };
  using Item = std::variant<StoredBlock, StoredSnapshot, Barrier>;
  using Pending = std::unordered_map<BlockKey, bool, KeyHash>;

  bool enqueue(Item item, const BlockKey& key, bool is_bounded, uint64_t bytes);
  void run(const std::stop_token& stop);
  void process(Item& item);
  void write_record(FamilyLog& family, const RecordToWrite& record);
  void save_uses();
  void append_uses(const std::vector<BlockKey>& keys);
  void rewrite_all_uses();
  void sync_all();
  void sweep_when_due();
  /// Runs `work` on the disk; when that refuses, notes it and returns false.
  bool try_disk(const std::function<void()>& work);

  const WriterOptions options_;

  // Of the thread alone.
  std::unique_ptr<UsesWriter> uses_;
  uint64_t unsynced_bytes_ = 0;
  int64_t swept_ = 0;
  std::set<std::string> reported_;

  // Relaxed: counts.
  std::atomic<uint64_t> written_bytes_{0};
  std::atomic<uint64_t> dropped_writes_{0};
  std::atomic<uint64_t> uses_bytes_{0};

  mutable std::mutex mutex_;  ///< of what follows
  std::condition_variable_any wakes_thread_;
  std::condition_variable wakes_flush_;
  std::deque<std::pair<Item, uint64_t>> queue_;  ///< with their bytes
  std::vector<BlockKey> queued_uses_;
  std::array<Pending, 2> pending_;  ///< queued blocks and snapshots: whether they are bounded
  uint64_t queued_bytes_ = 0;
  uint64_t tickets_ = 0;
  uint64_t tickets_done_ = 0;
  std::string last_error_;

  std::jthread thread_;  ///< last: ends before what it uses
};

}  // namespace tidepool::store
