#include "kv/store_index.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <tuple>

namespace tidepool::store {
namespace {

/// The disk learns of uses this much later at the latest; it is far below any
/// sensible time to live.
constexpr int64_t kSaveAfterSeconds = 60;

}  // namespace

size_t KeyHash::operator()(const BlockKey& key) const noexcept {
  size_t hash = 0;
  std::memcpy(&hash, key.digest.data(), sizeof hash);
  return hash;
}

bool StoreIndex::is_expired(const IndexEntry& entry, int64_t now) const {
  // After a clock that went back the difference is negative: not expired, and settle_uses() ends that state.
  return now - entry.last_use > ttl_;
}

const IndexEntry* StoreIndex::find(const BlockKey& key, int64_t now) const {
  const auto found = entries_.find(key);
  return found == entries_.end() || is_expired(found->second, now) ? nullptr : &found->second;
}

const IndexEntry* StoreIndex::lookup(const BlockKey& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

Absence StoreIndex::absence(const BlockKey& key, int64_t now) const {
  const auto found = entries_.find(key);
  if (found != entries_.end() && is_expired(found->second, now)) return Absence::kExpired;
  return gone_.find(key);
}

std::vector<const IndexEntry*> StoreIndex::children(const BlockKey& parent, size_t limit, int64_t now) const {
  std::vector<const IndexEntry*> result;
  const auto first = first_child_.find(parent);
  if (first == first_child_.end()) return result;
  for (const IndexEntry* entry = first->second; entry != nullptr && result.size() < limit; entry = entry->next) {
    if (!is_expired(*entry, now)) result.push_back(entry);
  }
  return result;
}

void StoreIndex::link(IndexEntry& entry) {
  IndexEntry*& first = first_child_[entry.parent];
  entry.previous = nullptr;
  entry.next = first;
  if (first != nullptr) first->previous = &entry;
  first = &entry;
}

void StoreIndex::unlink(IndexEntry& entry) {
  if (entry.next != nullptr) entry.next->previous = entry.previous;
  if (entry.previous != nullptr) {
    entry.previous->next = entry.next;
  } else if (entry.next != nullptr) {
    first_child_[entry.parent] = entry.next;
  } else {
    first_child_.erase(entry.parent);
  }
}

void StoreIndex::add_live(const Place& place) {
  segment_live_[place.segment] += place.bytes;
  live_bytes_ += place.bytes;
}

void StoreIndex::remove_live(const Place& place) {
  const auto found = segment_live_.find(place.segment);
  found->second -= place.bytes;
  if (found->second == 0) segment_live_.erase(found);
  live_bytes_ -= place.bytes;
}

uint64_t StoreIndex::live_bytes(uint32_t segment) const {
  const auto found = segment_live_.find(segment);
  return found == segment_live_.end() ? 0 : found->second;
}

bool StoreIndex::insert(const RecordMeta& meta, const Place& place, int64_t time) {
  const auto [at, is_new] = entries_.try_emplace(meta.key);
  IndexEntry& entry = at->second;
  if (!is_new) {
    const bool is_better = entry.is_bounded == meta.is_bounded ? meta.time >= entry.written : entry.is_bounded;
    if (!is_better) return false;
    remove_live(entry.place);
    unlink(entry);
  }
  const int64_t last_use = is_new ? time : std::max(time, entry.last_use);
  entry = {.key = meta.key,
           .parent = meta.parent,
           .index = meta.index,
           .is_bounded = meta.is_bounded,
           .place = place,
           .written = meta.time,
           .last_use = last_use,
           .saved_use = meta.time};
  link(entry);
  add_live(place);
  gone_.forget(meta.key);
  return true;
}

void StoreIndex::mark_suspect(const BlockKey& key, const Place& place) {
  const auto found = entries_.find(key);
  if (found != entries_.end() && found->second.place == place) found->second.is_suspect = true;
}

bool StoreIndex::has(const BlockKey& key, bool is_bounded, int64_t now) const {
  const IndexEntry* entry = find(key, now);
  return entry != nullptr && !entry->is_suspect && (is_bounded || !entry->is_bounded);
}

bool StoreIndex::move(const BlockKey& key, const Place& from, const Place& to) {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.place != from) return false;
  remove_live(from);
  found->second.place = to;
  add_live(to);
  return true;
}

bool StoreIndex::erase(const BlockKey& key, Absence reason) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  remove_live(found->second.place);
  unlink(found->second);
  entries_.erase(found);
  gone_.remember(key, reason);
  return true;
}

void StoreIndex::erase_segment(uint32_t segment, Absence reason) {
  std::vector<BlockKey> keys;
  for (const auto& [key, entry] : entries_) {
    if (entry.place.segment == segment) keys.push_back(key);
  }
  for (const BlockKey& key : keys)
    erase(key, reason);
}

bool StoreIndex::use(const BlockKey& key, int64_t now) {
  const auto end = entries_.find(key);
  if (end == entries_.end()) return false;
  // Ancestors are never older than what lies behind them, so the walk ends at the first that is as new.
  for (auto at = end; at != entries_.end() && at->second.last_use < now; at = entries_.find(at->second.parent)) {
    at->second.last_use = now;
  }
  IndexEntry& entry = end->second;
  if (now - entry.saved_use < kSaveAfterSeconds) return false;
  entry.saved_use = now;
  return true;
}

void StoreIndex::restore_use(const Use& use) {
  const auto found = entries_.find(use.key);
  if (found == entries_.end()) return;
  IndexEntry& entry = found->second;
  if (use.written == 0) {
    entry.last_use = std::max(entry.last_use, use.time);
  } else if (use.written == entry.written) {
    entry.last_use = use.time;
  }
  entry.saved_use = entry.last_use;
}

size_t StoreIndex::settle_uses(int64_t now) {
  size_t newer = 0;
  std::vector<IndexEntry*> order;
  order.reserve(entries_.size());
  for (auto& [key, entry] : entries_) {
    newer += entry.last_use > now ? 1 : 0;
    entry.last_use = std::min(entry.last_use, now);
    entry.saved_use = std::min(entry.saved_use, now);
    order.push_back(&entry);
  }
  std::ranges::sort(order, std::greater<>{}, &IndexEntry::index);
  for (const IndexEntry* entry : order) {
    const auto parent = entries_.find(entry->parent);
    if (parent != entries_.end()) parent->second.last_use = std::max(parent->second.last_use, entry->last_use);
  }
  return newer;
}

std::vector<BlockKey> StoreIndex::expired(int64_t now) const {
  std::vector<BlockKey> keys;
  for (const auto& [key, entry] : entries_) {
    if (is_expired(entry, now)) keys.push_back(key);
  }
  return keys;
}

std::vector<StoreIndex::Age> StoreIndex::ages() const {
  std::vector<Age> result;
  result.reserve(entries_.size());
  for (const auto& [key, entry] : entries_)
    result.push_back({key, entry.last_use, entry.index, entry.place.bytes});
  return result;
}

std::vector<BlockKey> least_recent(std::vector<StoreIndex::Age> ages, uint64_t bytes) {
  std::ranges::sort(ages, [](const StoreIndex::Age& a, const StoreIndex::Age& b) {
    return std::tie(a.last_use, b.index, a.key) < std::tie(b.last_use, a.index, b.key);
  });
  std::vector<BlockKey> keys;
  uint64_t sum = 0;
  for (const StoreIndex::Age& age : ages) {
    if (sum >= bytes) break;
    sum += age.bytes;
    keys.push_back(age.key);
  }
  return keys;
}

std::vector<Use> StoreIndex::distinct_uses() const {
  std::vector<Use> result;
  for (const auto& [key, entry] : entries_) {
    if (entry.last_use < entry.written) {
      result.push_back({key, entry.last_use, entry.written});
      continue;
    }
    int64_t implied = entry.written;
    const auto first = first_child_.find(key);
    const IndexEntry* child = first == first_child_.end() ? nullptr : first->second;
    for (; child != nullptr; child = child->next)
      implied = std::max(implied, child->last_use);
    if (entry.last_use > implied) result.push_back({key, entry.last_use, 0});
  }
  return result;
}

std::vector<const IndexEntry*> StoreIndex::entries() const {
  std::vector<const IndexEntry*> result;
  result.reserve(entries_.size());
  for (const auto& [key, entry] : entries_)
    result.push_back(&entry);
  return result;
}

}  // namespace tidepool::store
