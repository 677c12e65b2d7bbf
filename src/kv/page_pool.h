#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/absences.h"
#include "kv/block_key.h"
#include "kv/block_store.h"

namespace tidepool {

/// Complete blocks in RAM: those of live sequences and those of recent ones, found by their key. Reservations promise
/// room: with the pages of live sequences they never exceed the limit. Pages that nobody uses stay where room is only
/// promised, and go when it is taken; but some of it is always free, for blocks that are computed and not yet
/// published, so that pages and these together never exceed the limit either. When room is needed, the chain used least
/// recently goes first, its tail before its head, and never a page that a live sequence holds. Not thread-safe.
class PagePool {
 public:
  struct Page {
    std::shared_ptr<const KvBlock> data;
    BlockKey parent;
    int64_t index = 0;  ///< of the block in its chain
    bool is_bounded = false;
    std::vector<int32_t> tokens;  ///< ids of the block
    uint64_t last_use = 0;
  };

  PagePool(size_t block_bytes, size_t limit_bytes);

  /// Null when it is not there.
  [[nodiscard]] const Page* find(const BlockKey& key) const;
  /// Takes a block in, or replaces a bounded one by an exact one. `reserved` blocks are at hand for it; returns how
  /// many of these it used (0 or 1); those kept free, `free` of them, come last. A block for which there is no room is
  /// not taken in.
  int64_t insert(const StoredBlock& block, int64_t reserved, int64_t free);
  /// All of these were used now. `chain` begins at the first block, so that no tail is ever younger than its head.
  void touch(std::span<const BlockKey> chain);

  /// Promises room for `blocks`, of which `free` are made free now and stay so; false when there is not enough, even by
  /// evicting. `free`: how many are computed at most before they are published.
  [[nodiscard]] bool reserve(int64_t blocks, int64_t free);
  /// Makes as much room free as possible, at most for `blocks`.
  [[nodiscard]] int64_t reserve_up_to(int64_t blocks);
  /// Gives back what is left of a reservation that had `free` blocks kept free.
  void release(int64_t blocks, int64_t free);

  /// Blocks that follow `parent`, at most `limit`.
  [[nodiscard]] std::vector<const Page*> children(const BlockKey& parent, size_t limit) const;

  /// Why a block that was once here is gone; kNeverSeen when nothing is remembered.
  [[nodiscard]] Absence absence(const BlockKey& key) const { return absences_.find(key); }
  void remember_absence(const BlockKey& key, Absence absence) { absences_.remember(key, absence); }

  [[nodiscard]] int64_t count() const { return static_cast<int64_t>(pages_.size()); }
  /// Bounded blocks that gave way to exact ones while live sequences held them, and still do: they take room, too.
  [[nodiscard]] int64_t displaced() const;
  [[nodiscard]] int64_t reserved() const { return reserved_; }
  /// How many blocks reserve() would grant, at most `at_most`.
  [[nodiscard]] int64_t promisable(int64_t at_most) const;
  [[nodiscard]] int64_t limit() const { return limit_; }
  [[nodiscard]] size_t block_bytes() const { return block_bytes_; }
  [[nodiscard]] uint64_t evicted() const { return evicted_; }

 private:
  using Pages = std::unordered_map<BlockKey, Page>;
  /// Order of eviction: least recently used first, the deepest of a chain before its head.
  struct Age {
    uint64_t last_use;
    int64_t index;
    const BlockKey* key;
  };
  struct Older {
    bool operator()(const Age& a, const Age& b) const;
  };

  [[nodiscard]] int64_t room() const { return limit_ - count() - displaced() - free_; }
  /// Makes room for one block, as insert() says. Returns how many reserved ones it used, or nothing.
  [[nodiscard]] std::optional<int64_t> take_room(int64_t reserved, int64_t free);
  void evict(int64_t blocks);
  void erase(Pages::iterator page);

  size_t block_bytes_;
  int64_t limit_;  ///< blocks
  int64_t reserved_ = 0;
  int64_t free_ = 0;  ///< of these, kept free
  uint64_t clock_ = 0;
  uint64_t evicted_ = 0;
  Pages pages_;
  std::set<Age, Older> ages_;
  std::unordered_multimap<BlockKey, BlockKey> children_;  ///< of each parent; only blocks that are here
  std::vector<std::weak_ptr<const KvBlock>> displaced_;
  Absences absences_;
};

}  // namespace tidepool
