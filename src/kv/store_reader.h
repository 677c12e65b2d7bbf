#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/file.h"
#include "kv/store_index.h"
#include "kv/store_record.h"

/// Reading many records of one family at once. (docs/kv_store.md, "Reading")
namespace tidepool::store {

enum class ReadOutcome : uint8_t {
  kRead,     ///< whole, and what was asked for
  kDamaged,  ///< checksum, version or key do not fit
  kGone,     ///< no such file any more
  kFailed,   ///< the system refused to open or to read, or had no memory: nothing
             ///< is known of the record
};

struct RecordRequest {
  BlockKey key;
  Place place;
};

/// Threads that help whoever reads: made once, shared by all reads.
/// Thread-safe.
class ReadPool {
 public:
  /// As many as the system gives, at most `threads`; with fewer of them, or
  /// none, reads are slower.
  explicit ReadPool(size_t threads);
  ReadPool(const ReadPool&) = delete;
  ReadPool& operator=(const ReadPool&) = delete;
  ~ReadPool();

  /// Runs `work` on this thread and at the same time on up to `helpers` others.
  /// Returns when all of them are through. `work` does not throw.
  void run(const std::function<void()>& work, size_t helpers);
  [[nodiscard]] size_t threads() const { return threads_.size(); }

 private:
  struct Job {
    const std::function<void()>* work = nullptr;
    size_t wanted = 0;  ///< helpers that may still join
    size_t running = 0;
  };
  void help(const std::stop_token& stop);

  std::mutex mutex_;  ///< of jobs_ and what is in them
  std::condition_variable_any has_work_;
  std::condition_variable is_done_;
  std::deque<Job*> jobs_;  ///< those that want helpers
  std::vector<std::jthread> threads_;
};

struct ReaderOptions {
  FileSystem& files;
  std::function<std::filesystem::path(uint32_t segment)> path;
  ReadPool& pool;
};

/// Reads `requests`, neighbours in one go, several of them in flight, around
/// the page cache where the file system can. `take` is called once for each
/// request, from several threads; `record` is null unless the outcome is kRead,
/// and its payload is valid during the call only. When `take` throws for lack
/// of memory, it is called again with kFailed.
void read_records(const ReaderOptions& options, std::span<const RecordRequest> requests,
                  const std::function<void(size_t index, ReadOutcome outcome, const RecordView* record)>& take);

}  // namespace tidepool::store
