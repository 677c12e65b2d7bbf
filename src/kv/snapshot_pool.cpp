#include "kv/snapshot_pool.h"

#include <algorithm>
#include <utility>

namespace tidepool {

std::vector<StoredSnapshot> SnapshotPool::add(Snapshot snapshot, const CacheText& text,
                                              std::span<const BlockKey> parents, Time now) {
  std::vector<StoredSnapshot> gone = expire(now);
  supersede(text, parents);
  const auto same = entries_.find(snapshot.key);
  if (same != entries_.end()) {
    touch(same->first, now);
    if (snapshot.info.marks.is_bounded && !same->second.snapshot->info.marks.is_bounded) return gone;
    bytes_ -= same->second.snapshot->bytes->size();
    bytes_ += snapshot.bytes->size();
    same->second.snapshot = std::make_shared<const Snapshot>(std::move(snapshot));
    return gone;
  }
  if (snapshot.bytes->size() > limit_bytes_) return gone;
  while (bytes_ + snapshot.bytes->size() > limit_bytes_)
    remove(least_recent(), gone);
  bytes_ += snapshot.bytes->size();
  by_parent_.emplace(snapshot.parent, snapshot.key);
  const BlockKey key = snapshot.key;
  entries_.emplace(key, Entry{std::make_shared<const Snapshot>(std::move(snapshot)), ++clock_, now + time_to_live_});
  return gone;
}

/// Marks what the new sequence has gone on from: whatever of its own beginning was kept before.
void SnapshotPool::supersede(const CacheText& text, std::span<const BlockKey> parents) {
  const auto length = static_cast<int64_t>(text.tokens.size());
  for (size_t block = 0; block < parents.size(); ++block) {
    const auto [begin, end] = by_parent_.equal_range(parents[block]);
    for (auto child = begin; child != end; ++child) {
      Entry& entry = entries_.at(child->second);
      const SnapshotInfo& info = entry.snapshot->info;
      if (info.length >= length) continue;
      const int64_t common = common_tokens(text, info.tail_begin(), info.tail, info.images);
      if (common == static_cast<int64_t>(info.tail.size())) entry.is_newest = false;
    }
  }
}

std::vector<StoredSnapshot> SnapshotPool::expire(Time now) {
  std::vector<StoredSnapshot> gone;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->second.expires <= now) remove(entry, gone);
    entry = next;
  }
  return gone;
}

std::vector<StoredSnapshot> SnapshotPool::clear() {
  std::vector<StoredSnapshot> gone;
  while (!entries_.empty())
    remove(least_recent(), gone);
  return gone;
}

std::vector<std::shared_ptr<const SnapshotPool::Snapshot>> SnapshotPool::find(const BlockKey& parent) const {
  std::vector<std::shared_ptr<const Snapshot>> result;
  const auto [begin, end] = by_parent_.equal_range(parent);
  for (auto child = begin; child != end; ++child)
    result.push_back(entries_.at(child->second).snapshot);
  return result;
}

void SnapshotPool::touch(const BlockKey& key, Time now) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return;
  entry->second.last_use = ++clock_;
  entry->second.expires = now + time_to_live_;
}

SnapshotPool::Entries::iterator SnapshotPool::least_recent() {
  return std::ranges::min_element(entries_, {}, [](const Entries::value_type& entry) { return entry.second.last_use; });
}

void SnapshotPool::remove(Entries::iterator entry, std::vector<StoredSnapshot>& gone) {
  const Snapshot& snapshot = *entry->second.snapshot;
  bytes_ -= snapshot.bytes->size();
  const auto [begin, end] = by_parent_.equal_range(snapshot.parent);
  by_parent_.erase(std::find_if(begin, end, [&](const auto& child) { return child.second == snapshot.key; }));
  if (entry->second.is_newest) gone.push_back({snapshot.key, snapshot.parent, snapshot.info.length, *snapshot.bytes});
  entries_.erase(entry);
}

}  // namespace tidepool
