#include "kv/page_pool.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/check.h"

namespace tidepool {
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

int64_t PagePool::displaced() const {
  return std::ranges::count_if(displaced_, [](const auto& block) { return !block.expired(); });
}

std::optional<int64_t> PagePool::take_room(int64_t reserved, int64_t free) {
  const int64_t used = std::min<int64_t>(reserved, 1);
  const int64_t used_free = used > 0 && free >= reserved ? 1 : 0;
  if (room() + used_free < 1) evict(1);
  if (room() + used_free < 1) return std::nullopt;
  reserved_ -= used;
  free_ -= used_free;
  return used;
}

int64_t PagePool::insert(const StoredBlock& block, int64_t reserved, int64_t free) {
  const auto found = pages_.find(block.key);
  if (found != pages_.end()) {
    Page& page = found->second;
    if (!page.is_bounded || block.is_bounded) return 0;
    std::optional<int64_t> used = 0;
    if (page.data.use_count() > 1) {  // live sequences go on with the bounded block: there are two of them then
      used = take_room(reserved, free);
      if (!used) return 0;
      std::erase_if(displaced_, [](const auto& old) { return old.expired(); });
      displaced_.emplace_back(page.data);
    }
    page.data = block.data;
    page.is_bounded = false;
    return *used;
  }
  const std::optional<int64_t> used = take_room(reserved, free);
  if (!used) return 0;
  const auto [place, is_new] =
      pages_.emplace(block.key, Page{block.data, block.parent, block.index, block.is_bounded, block.tokens, clock_});
  TIDEPOOL_CHECK(is_new, "the key was looked up before");
  ages_.insert({clock_, block.index, &place->first});
  children_.emplace(block.parent, block.key);
  absences_.forget(block.key);
  return *used;
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

/// How much more can be promised beside what live sequences hold and what is promised already.
int64_t PagePool::promisable(int64_t at_most) const {
  int64_t blocks = limit_ - count() - displaced() - reserved_;
  for (auto age = ages_.begin(); age != ages_.end() && blocks < at_most; ++age)
    if (pages_.at(*age->key).data.use_count() == 1) ++blocks;
  return std::clamp<int64_t>(blocks, 0, at_most);
}

bool PagePool::reserve(int64_t blocks, int64_t free) {
  free = std::min(free, blocks);
  if (promisable(blocks) < blocks) return false;
  if (room() < free) evict(free - room());
  if (room() < free) return false;
  reserved_ += blocks;
  free_ += free;
  return true;
}

int64_t PagePool::reserve_up_to(int64_t blocks) {
  blocks = promisable(blocks);
  return reserve(blocks, blocks) ? blocks : 0;
}

void PagePool::release(int64_t blocks, int64_t free) {
  reserved_ -= blocks;
  free_ -= free;
  TIDEPOOL_CHECK(0 <= free_ && free_ <= reserved_, "only what was reserved is given back");
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

}  // namespace tidepool
