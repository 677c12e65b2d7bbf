#include "kv/snapshot_pool.h"

#include <algorithm>
#include <utility>

namespace tidepool {

SnapshotPool::Gone SnapshotPool::add(Snapshot snapshot, const CacheText& text, std::span<const BlockKey> parents,
                                     Time now) {
  Gone gone = expire(now);
  supersede(text, parents);
  bool is_newest = true;
  const auto same = entries_.find(snapshot.key);
  if (same != entries_.end()) {
    if (snapshot.info.marks.is_bounded && !same->second.snapshot->info.marks.is_bounded) {
      touch(same->first, now);
      return gone;
    }
    is_newest = same->second.is_newest;
    erase(same);
  }
  const auto added = std::make_shared<const Snapshot>(std::move(snapshot));
  if (added->bytes->size() > limit_bytes_) {
    if (is_newest) gone.push_back(added);
    return gone;
  }
  while (bytes_ + added->bytes->size() > limit_bytes_)
    remove(least_recent(), gone);
  bytes_ += added->bytes->size();
  by_parent_.emplace(added->parent, added->key);
  entries_.emplace(added->key, Entry{added, ++clock_, now + time_to_live_, is_newest});
  return gone;
}

/// Marks what the new sequence has gone on from: whatever of its own beginning was kept before.
void SnapshotPool::supersede(const CacheText& text, std::span<const BlockKey> parents) {
  const auto length = static_cast<int64_t>(text.tokens.size());
  for (const BlockKey& parent : parents) {
    const auto [begin, end] = by_parent_.equal_range(parent);
    for (auto child = begin; child != end; ++child) {
      Entry& entry = entries_.at(child->second);
      const SnapshotInfo& info = entry.snapshot->info;
      if (info.length >= length) continue;
      const int64_t common = common_tokens(text, info.tail_begin(), info.tail, info.images);
      if (common == static_cast<int64_t>(info.tail.size())) entry.is_newest = false;
    }
  }
}

SnapshotPool::Gone SnapshotPool::expire(Time now) {
  Gone gone;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->second.expires <= now) remove(entry, gone);
    entry = next;
  }
  return gone;
}

SnapshotPool::Gone SnapshotPool::clear() {
  Gone gone;
  while (!entries_.empty())
    remove(least_recent(), gone);
  std::ranges::reverse(gone);
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

void SnapshotPool::erase(Entries::iterator entry) {
  const Snapshot& snapshot = *entry->second.snapshot;
  bytes_ -= snapshot.bytes->size();
  const auto [begin, end] = by_parent_.equal_range(snapshot.parent);
  by_parent_.erase(std::find_if(begin, end, [&](const auto& child) { return child.second == snapshot.key; }));
  entries_.erase(entry);
}

void SnapshotPool::remove(Entries::iterator entry, Gone& gone) {
  if (entry->second.is_newest) gone.push_back(entry->second.snapshot);
  erase(entry);
}

}  // namespace tidepool
