#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/block_key.h"
#include "kv/block_store.h"
#include "kv/snapshot.h"

namespace tidepool {

/// Snapshots in RAM, for minutes. When there is no room, those whose time is over go first, then those used least
/// recently. Of what goes, the newest of each session (what no longer sequence has gone on from) is handed back, so
/// that it can be kept elsewhere. Not thread-safe.
class SnapshotPool {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Snapshot {
    BlockKey key;
    BlockKey parent;
    SnapshotInfo info;
    std::shared_ptr<const std::vector<std::byte>> bytes;
  };

  using Gone = std::vector<std::shared_ptr<const Snapshot>>;

  SnapshotPool(size_t limit_bytes, std::chrono::seconds time_to_live)
      : limit_bytes_(limit_bytes), time_to_live_(time_to_live) {}

  /// `text` is what the sequence holds, `parents` the root and the keys of its
  /// complete blocks. What it goes on from is no longer the newest of its
  /// session. Returns what went to make room, or the snapshot itself when it is
  /// larger than the whole pool.
  [[nodiscard]] Gone add(Snapshot snapshot, const CacheText& text, std::span<const BlockKey> parents, Time now);
  /// Lets go what is past its time; returns the newest of each session among
  /// it.
  [[nodiscard]] Gone expire(Time now);
  /// Lets go everything, likewise, what was used last first.
  [[nodiscard]] Gone clear();

  /// The snapshots behind a block (or the root).
  [[nodiscard]] std::vector<std::shared_ptr<const Snapshot>> find(const BlockKey& parent) const;
  /// It was used now.
  void touch(const BlockKey& key, Time now);

  [[nodiscard]] size_t bytes() const { return bytes_; }
  [[nodiscard]] int64_t count() const { return static_cast<int64_t>(entries_.size()); }

 private:
  struct Entry {
    std::shared_ptr<const Snapshot> snapshot;
    uint64_t last_use = 0;
    Time expires;
    bool is_newest = true;  ///< of its session
  };
  using Entries = std::unordered_map<BlockKey, Entry>;

  void supersede(const CacheText& text, std::span<const BlockKey> parents);
  [[nodiscard]] Entries::iterator least_recent();
  void erase(Entries::iterator entry);
  void remove(Entries::iterator entry, Gone& gone);

  size_t limit_bytes_;
  std::chrono::seconds time_to_live_;
  size_t bytes_ = 0;
  uint64_t clock_ = 0;
  Entries entries_;
  std::unordered_multimap<BlockKey, BlockKey> by_parent_;
};

}  // namespace tidepool
