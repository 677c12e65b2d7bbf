#include "kv/page_pool.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/check.h"

namespace tidepool {
namespace {

/// Blocks whose absence is remembered, 40 bytes each: some 8 million tokens at 128 a block.
constexpr size_t kAbsencesMax = 65'536;

}  // namespace

bool PagePool::Older::operator()(const Age& a, const Age& b) const {
  return std::tie(a.last_use, b.index, *a.key) < std::tie(b.last_use, a.index, *b.key);
}

PagePool::PagePool(size_t block_bytes, size_t limit_bytes)
    : block_bytes_(block_bytes),
      limit_(block_bytes == 0 ? std::numeric_limits<int64_t>::max() / 2
                              : static_cast<int64_t>(limit_bytes / block_bytes)) {}

const PagePool::Page* PagePool::find(const BlockKey& key) const {
  const auto found = pages_.find(key);
  return found == pages_.end() ? nullptr : &found->second;
}

void PagePool::mark_stored(const BlockKey& key) {
  const auto found = pages_.find(key);
  if (found != pages_.end()) found->second.is_stored = true;
}

int64_t PagePool::insert(const StoredBlock& block, bool is_stored, int64_t reserved) {
  const auto found = pages_.find(block.key);
  if (found != pages_.end()) {
    Page& page = found->second;
    if (page.is_bounded && !block.is_bounded) {
      page.data = block.data;
      page.is_bounded = false;
      page.is_stored = is_stored;
    }
    return 0;
  }
  const int64_t used = std::min<int64_t>(reserved, 1);
  if (used == 0 && room() < 1) evict(1);
  if (used == 0 && room() < 1) return 0;
  reserved_ -= used;
  const auto [place, is_new] = pages_.emplace(
      block.key, Page{block.data, block.parent, block.index, block.is_bounded, is_stored, block.tokens, clock_});
  TIDEPOOL_CHECK(is_new, "the key was looked up before");
  ages_.insert({clock_, block.index, &place->first});
  children_.emplace(block.parent, block.key);
  absences_.erase(block.key);
  return used;
}

void PagePool::touch(std::span<const BlockKey> chain) {
  ++clock_;
  for (const BlockKey& key : chain) {
    const auto found = pages_.find(key);
    if (found == pages_.end()) continue;
    Page& page = found->second;
    auto age = ages_.extract({page.last_use, page.index, &found->first});
    page.last_use = clock_;
    age.value().last_use = clock_;
    ages_.insert(std::move(age));
  }
}

bool PagePool::reserve(int64_t blocks) {
  if (room() < blocks) evict(blocks - room());
  if (room() < blocks) return false;
  reserved_ += blocks;
  return true;
}

int64_t PagePool::reserve_up_to(int64_t blocks) {
  if (room() < blocks) evict(blocks - room());
  const int64_t taken = std::clamp<int64_t>(room(), 0, blocks);
  reserved_ += taken;
  return taken;
}

void PagePool::release(int64_t blocks) {
  reserved_ -= blocks;
  TIDEPOOL_CHECK(reserved_ >= 0, "only what was reserved is given back");
}

void PagePool::evict(int64_t blocks) {
  for (auto age = ages_.begin(); age != ages_.end() && blocks > 0;) {
    const auto page = pages_.find(*age->key);
    ++age;  // erase() removes this one's place
    // 1: only the pool has it. Whoever else has one got it from here, under the same lock, so it cannot become more.
    if (page->second.data.use_count() > 1) continue;
    remember_absence(page->first, Absence::kEvicted);
    erase(page);
    ++evicted_;
    --blocks;
  }
}

void PagePool::erase(Pages::iterator page) {
  ages_.erase({page->second.last_use, page->second.index, &page->first});
  const auto [begin, end] = children_.equal_range(page->second.parent);
  const auto child = std::find_if(begin, end, [&](const auto& entry) { return entry.second == page->first; });
  if (child != end) children_.erase(child);
  pages_.erase(page);
}

std::vector<const PagePool::Page*> PagePool::children(const BlockKey& parent, size_t limit) const {
  std::vector<const Page*> result;
  const auto [begin, end] = children_.equal_range(parent);
  for (auto child = begin; child != end && result.size() < limit; ++child)
    result.push_back(find(child->second));
  return result;
}

Absence PagePool::absence(const BlockKey& key) const {
  const auto found = absences_.find(key);
  return found == absences_.end() ? Absence::kNeverSeen : found->second;
}

void PagePool::remember_absence(const BlockKey& key, Absence absence) {
  if (absence == Absence::kNeverSeen) return;
  if (absences_.insert_or_assign(key, absence).second) absence_order_.push_back(key);
  while (absence_order_.size() > kAbsencesMax) {
    absences_.erase(absence_order_.front());
    absence_order_.pop_front();
  }
}

}  // namespace tidepool
