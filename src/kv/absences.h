#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>

#include "kv/block_key.h"
#include "kv/block_store.h"

namespace tidepool {

/// Why things that were kept are not there any more, for answers that say so. The youngest kMax are remembered, some 5
/// MB. Not thread-safe.
class Absences {
 public:
  static constexpr size_t kMax = 65'536;

  /// kNeverSeen says nothing and is not remembered.
  void remember(const BlockKey& key, Absence reason) {
    if (reason == Absence::kNeverSeen) return;
    const uint64_t turn = ++turns_;
    gone_.insert_or_assign(key, Entry{reason, turn});
    order_.emplace_back(key, turn);
    while (order_.size() > kMax) {
      // The same key may have gone again since, and is then younger than this place in the order.
      const auto oldest = gone_.find(order_.front().first);
      if (oldest != gone_.end() && oldest->second.turn == order_.front().second) gone_.erase(oldest);
      order_.pop_front();
    }
  }
  /// It is there again.
  void forget(const BlockKey& key) { gone_.erase(key); }
  /// kNeverSeen when nothing is remembered.
  [[nodiscard]] Absence find(const BlockKey& key) const {
    const auto found = gone_.find(key);
    return found == gone_.end() ? Absence::kNeverSeen : found->second.reason;
  }

 private:
  struct Entry {
    Absence reason = Absence::kNeverSeen;
    uint64_t turn = 0;
  };

  std::unordered_map<BlockKey, Entry> gone_;
  std::deque<std::pair<BlockKey, uint64_t>> order_;  ///< oldest first; places of what came back are skipped
  uint64_t turns_ = 0;
};

}  // namespace tidepool
