#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kv/absences.h"
#include "kv/block_key.h"
#include "kv/block_store.h"
#include "kv/store_record.h"
#include "kv/store_uses.h"

namespace tidepool::store {

/// Where a record lies.
struct Place {
  uint32_t segment = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;  ///< of the record with its padding
  friend bool operator==(const Place&, const Place&) = default;
};

/// Hash of a key: its digest is uniform already.
struct KeyHash {
  size_t operator()(const BlockKey& key) const noexcept;
};

/// What is known in memory of one record.
struct IndexEntry {
  BlockKey key;
  BlockKey parent;
  int64_t index = 0;  ///< of a block in its chain; of a snapshot its length
  bool is_bounded = false;
  bool is_suspect = false;  ///< a read was refused: a copy is welcome
  Place place;
  int64_t written = 0;    ///< seconds since 1970
  int64_t last_use = 0;   ///< of it or of anything behind it in its chain
  int64_t saved_use = 0;  ///< what the disk knows of last_use
  // Neighbours among the children of one parent.
  IndexEntry* previous = nullptr;
  IndexEntry* next = nullptr;
};

/// Records of one family by key, by parent and by age. One thread at a time.
class StoreIndex {
 public:
  explicit StoreIndex(std::chrono::seconds ttl) : ttl_(ttl.count()) {}
  StoreIndex(const StoreIndex&) = delete;
  StoreIndex& operator=(const StoreIndex&) = delete;
  ~StoreIndex() = default;

  /// An entry that is not expired at `now`.
  [[nodiscard]] const IndexEntry* find(const BlockKey& key, int64_t now) const;
  /// An entry whatever its age.
  [[nodiscard]] const IndexEntry* lookup(const BlockKey& key) const;
  /// Why find() gives none.
  [[nodiscard]] Absence absence(const BlockKey& key, int64_t now) const;
  [[nodiscard]] std::vector<const IndexEntry*> children(const BlockKey& parent, size_t limit, int64_t now) const;

  /// Adds a record that was used at `time`. Of two under one key an exact one stays before a bounded one, and else the
  /// newer. False when the one that was there stays.
  bool insert(const RecordMeta& meta, const Place& place, int64_t time);
  /// The record could not be read now: has() denies it until it is written again.
  void mark_suspect(const BlockKey& key, const Place& place);
  /// Whether a record of this kind need not be written.
  [[nodiscard]] bool has(const BlockKey& key, bool is_bounded, int64_t now) const;
  /// The record lies elsewhere now. False when `from` is not its place any
  /// more.
  bool move(const BlockKey& key, const Place& from, const Place& to);
  /// Forgets the entry and remembers the reason for a while. False when it is not there.
  bool erase(const BlockKey& key, Absence reason);
  /// Forgets all records of a segment.
  void erase_segment(uint32_t segment, Absence reason);

  /// A use of `key` and of all before it in its chain. Returns whether the disk should learn of it: at most once a
  /// minute for each chain.
  bool use(const BlockKey& key, int64_t now);
  /// After loading: what the file of uses says.
  void restore_use(const Use& use);
  /// After all of them: no ancestor is older than what lies behind it, and nothing was used later than `now`, as a
  /// clock that went back would have it. Returns how many entries were newer than `now`: the file of uses should say
  /// so (distinct_uses()), or the next process finds them as new again.
  size_t settle_uses(int64_t now);

  /// Keys that are expired at `now`.
  [[nodiscard]] std::vector<BlockKey> expired(int64_t now) const;
  /// What eviction decides by, of all entries.
  struct Age {
    BlockKey key;
    int64_t last_use = 0;
    int64_t index = 0;
    uint64_t bytes = 0;
  };
  [[nodiscard]] std::vector<Age> ages() const;
  /// Last uses that follow neither from when records were written nor from their children: what the file of uses must
  /// hold.
  [[nodiscard]] std::vector<Use> distinct_uses() const;
  /// All entries.
  [[nodiscard]] std::vector<const IndexEntry*> entries() const;

  [[nodiscard]] size_t size() const { return entries_.size(); }
  [[nodiscard]] uint64_t live_bytes() const { return live_bytes_; }
  [[nodiscard]] uint64_t live_bytes(uint32_t segment) const;

 private:
  void link(IndexEntry& entry);
  void unlink(IndexEntry& entry);
  void add_live(const Place& place);
  void remove_live(const Place& place);
  [[nodiscard]] bool is_expired(const IndexEntry& entry, int64_t now) const;

  int64_t ttl_;
  std::unordered_map<BlockKey, IndexEntry, KeyHash> entries_;
  std::unordered_map<BlockKey, IndexEntry*, KeyHash> first_child_;
  std::unordered_map<uint32_t, uint64_t> segment_live_;
  uint64_t live_bytes_ = 0;
  Absences gone_;
};

/// Least recently used keys that make up `bytes`, the tail of a chain before its head.
[[nodiscard]] std::vector<BlockKey> least_recent(std::vector<StoreIndex::Age> ages, uint64_t bytes);

}  // namespace tidepool::store
