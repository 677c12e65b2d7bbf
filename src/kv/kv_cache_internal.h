#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "kv/kv_cache.h"
#include "kv/page_pool.h"
#include "kv/snapshot_pool.h"

namespace tidepool {

/// What a cache is made of. `mutex` guards the pools and counters; it is never held while the store is asked.
struct KvCache::Impl {
  Impl(std::shared_ptr<const KvLayout> layout_in, KvCacheOptions options_in)
      : layout(std::move(layout_in)),
        options(std::move(options_in)),
        pages(layout->block_bytes, options.ram_bytes),
        snapshots(options.snapshot_ram_bytes, options.snapshot_ttl) {}

  [[nodiscard]] SnapshotPool::Time now() const {
    return options.now ? options.now() : std::chrono::steady_clock::now();
  }
  [[nodiscard]] CacheDomain domain(std::string_view salt) const { return {options.model, std::string(salt)}; }
  /// Moves to disk what left the snapshots. Not under the mutex.
  void keep(const SnapshotPool::Gone& gone) const {
    if (!options.store) return;
    for (const auto& snapshot : gone)
      options.store->write_snapshot(stored(*snapshot));
  }
  /// The same, and waits for the disk where its queue is full: nothing comes after it.
  void keep_all(const SnapshotPool::Gone& gone) const {
    if (!options.store) return;
    for (const auto& snapshot : gone) {
      if (options.store->write_snapshot(stored(*snapshot))) continue;
      options.store->flush();
      options.store->write_snapshot(stored(*snapshot));
    }
  }
  [[nodiscard]] static StoredSnapshot stored(const SnapshotPool::Snapshot& snapshot) {
    return {.key = snapshot.key,
            .parent = snapshot.parent,
            .length = snapshot.info.length,
            .is_bounded = snapshot.info.marks.is_bounded,
            .bytes = *snapshot.bytes};
  }
  void expire() {
    SnapshotPool::Gone gone;
    {
      const std::lock_guard lock(mutex);
      gone = snapshots.expire(now());
    }
    keep(gone);
  }
  void release(int64_t blocks, int64_t free) {
    const std::lock_guard lock(mutex);
    pages.release(blocks, free);
  }

  std::shared_ptr<const KvLayout> layout;
  KvCacheOptions options;
  std::mutex mutex;
  PagePool pages;
  SnapshotPool snapshots;
  std::deque<BlockKey> to_offer;  ///< blocks that the store did not take or could not keep, oldest first
};

/// KvCache::resume(), in kv_resume.cpp.
[[nodiscard]] KvCache::Resumed resume_prompt(KvCache::Impl& cache, const KvCache::Query& query);

}  // namespace tidepool
