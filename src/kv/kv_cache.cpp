#include "kv/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "kv/kv_cache_internal.h"

namespace tidepool {
namespace {

/// Complete blocks of a sequence.
int64_t complete_blocks(const SequenceState& state) {
  return std::min(state.length() / kBlockTokens, static_cast<int64_t>(state.blocks().size()));
}

StoredBlock stored_block(const SequenceState& state, std::span<const BlockKey> parents, int64_t index) {
  const auto at = static_cast<size_t>(index);
  StoredBlock block;
  block.key = parents[at + 1];
  block.parent = parents[at];
  block.index = index;
  block.is_bounded = state.is_bounded();
  block.tokens.reserve(kBlockTokens);
  for (const InputToken& token : state.tokens().subspan(at * kBlockTokens, kBlockTokens))
    block.tokens.push_back(token.id);
  block.data = state.blocks()[at];
  return block;
}

/// The root and the keys of all complete blocks.
std::vector<BlockKey> parent_chain(const CacheDomain& domain, const SequenceState& state,
                                   std::span<const ImageSpan> images) {
  const CacheText text{state.tokens().first(static_cast<size_t>(complete_blocks(state) * kBlockTokens)), images};
  std::vector<BlockKey> parents = block_chain(domain, text);
  parents.insert(parents.begin(), root_key(domain));
  return parents;
}

/// Blocks that are offered to the store at a time, between two looks at the pages.
constexpr size_t kOfferedAtOnce = 64;

/// Takes the next blocks that the store should have from the pages; those whose page has gone are left out.
std::vector<StoredBlock> take_offers(KvCache::Impl& cache) {
  std::vector<StoredBlock> offers;
  const std::lock_guard lock(cache.mutex);
  while (!cache.to_offer.empty() && offers.size() < kOfferedAtOnce) {
    const BlockKey key = cache.to_offer.front();
    cache.to_offer.pop_front();
    const PagePool::Page* page = cache.pages.find(key);
    if (page != nullptr) offers.push_back({key, page->parent, page->index, page->is_bounded, page->tokens, page->data});
  }
  return offers;
}

/// Offers the store what it does not have, until it takes no more: the rest waits for the next call.
void offer_blocks(KvCache::Impl& cache) {
  BlockStore& store = *cache.options.store;
  const std::vector<BlockKey> lost = store.take_lost();
  {
    const std::lock_guard lock(cache.mutex);
    cache.to_offer.insert(cache.to_offer.end(), lost.begin(), lost.end());
    // A store that takes nothing must not make this grow for ever.
    if (cache.to_offer.size() > 2 * static_cast<size_t>(cache.pages.count()) + kOfferedAtOnce)
      std::erase_if(cache.to_offer, [&](const BlockKey& key) { return cache.pages.find(key) == nullptr; });
  }
  for (std::vector<StoredBlock> offers = take_offers(cache); !offers.empty(); offers = take_offers(cache)) {
    const auto refused = std::ranges::find_if_not(offers, [&](const StoredBlock& block) { return store.write(block); });
    if (refused == offers.end()) continue;
    const std::lock_guard lock(cache.mutex);
    for (auto block = offers.end(); block != refused; --block)
      cache.to_offer.push_front(std::prev(block)->key);
    return;
  }
}

/// Writes what the queue had no room for, until the store has everything or takes no more.
void offer_rest(KvCache::Impl& cache) {
  BlockStore& store = *cache.options.store;
  const auto waiting = [&] {
    const std::lock_guard lock(cache.mutex);
    return cache.to_offer.size();
  };
  size_t before = 0;
  size_t left = waiting();
  do {
    store.flush();
    offer_blocks(cache);
    before = std::exchange(left, waiting());
  } while (left > 0 && left < before);
  store.flush();
}

}  // namespace

std::string_view cache_tier_name(CacheTier tier) {
  switch (tier) {
    case CacheTier::kNone: return "none";
    case CacheTier::kSnapshotRam: return "snapshot_ram";
    case CacheTier::kSnapshotDisk: return "snapshot_disk";
    case CacheTier::kPages: return "pages";
    case CacheTier::kDisk: return "disk";
  }
  return "unknown";
}

std::string_view match_end_name(MatchEnd end) {
  switch (end) {
    case MatchEnd::kComplete: return "complete";
    case MatchEnd::kDiffers: return "differs";
    case MatchEnd::kNotSeen: return "not_seen";
    case MatchEnd::kEvicted: return "evicted";
    case MatchEnd::kExpired: return "expired";
    case MatchEnd::kChecksum: return "checksum";
    case MatchEnd::kUnreadable: return "unreadable";
    case MatchEnd::kBelowBreakEven: return "below_break_even";
  }
  return "unknown";
}

KvCache::Reservation::Reservation(Reservation&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      blocks_(std::exchange(other.blocks_, 0)),
      free_(std::exchange(other.free_, 0)) {}

KvCache::Reservation& KvCache::Reservation::operator=(Reservation&& other) noexcept {
  std::swap(cache_, other.cache_);
  std::swap(blocks_, other.blocks_);
  std::swap(free_, other.free_);
  return *this;
}

KvCache::Reservation::~Reservation() {
  if (cache_ != nullptr && blocks_ > 0) cache_->impl_->release(blocks_, free_);
}

KvCache::KvCache(std::shared_ptr<const KvLayout> layout, KvCacheOptions options)
    : impl_(std::make_unique<Impl>(std::move(layout), std::move(options))) {}

KvCache::~KvCache() {
  impl_->keep_all(impl_->snapshots.clear());
  if (impl_->options.store) offer_rest(*impl_);
}

namespace {

/// Blocks that a sequence still lacks to hold `tokens` tokens.
int64_t missing_blocks(const SequenceState& state, int64_t tokens) {
  const int64_t known = std::max(state.length(), state.global_end()) / kBlockTokens;
  return std::max<int64_t>((tokens + kBlockTokens - 1) / kBlockTokens - known, 0);
}

}  // namespace

std::optional<KvCache::Reservation> KvCache::reserve(const SequenceState& state, int64_t tokens,
                                                     std::optional<int64_t> unpublished) {
  impl_->expire();
  const int64_t all = (tokens + kBlockTokens - 1) / kBlockTokens;
  const std::lock_guard lock(impl_->mutex);
  PagePool& pages = impl_->pages;
  if (all > pages.limit()) {
    throw Error(ErrorCode::kResourceExhausted,
                fmt::format("{} tokens of context need {:.1f} MiB of KV, more than --kv-ram allows ({:.1f} MiB); raise "
                            "--kv-ram, or shorten the prompt or the answer",
                            tokens, static_cast<double>(all) * static_cast<double>(pages.block_bytes()) / 0x1p20,
                            static_cast<double>(impl_->options.ram_bytes) / 0x1p20));
  }
  Reservation result;
  const int64_t missing = missing_blocks(state, tokens);
  const int64_t free = unpublished ? (*unpublished + kBlockTokens - 1) / kBlockTokens : missing;
  if (!pages.reserve(missing, free)) return std::nullopt;
  result.cache_ = this;
  result.blocks_ = missing;
  result.free_ = std::min(missing, free);
  return result;
}

int64_t KvCache::shortage(const SequenceState& state, int64_t tokens) const {
  const int64_t missing = missing_blocks(state, tokens);
  const std::lock_guard lock(impl_->mutex);
  return missing - impl_->pages.promisable(missing);
}

KvCache::Resumed KvCache::resume(const Query& query) {
  TIDEPOOL_CHECK(!query.text.tokens.empty(), "a prompt has a token");
  impl_->expire();
  return resume_prompt(*impl_, query);
}

void KvCache::publish_blocks(const SequenceState& state, std::span<const BlockKey> parents, Reservation* reservation) {
  Reservation none;
  Reservation& room = reservation == nullptr ? none : *reservation;
  BlockStore* store = impl_->options.store.get();
  std::vector<StoredBlock> without_page;
  {
    const std::lock_guard lock(impl_->mutex);
    PagePool& pages = impl_->pages;
    // Blocks that the sequence was resumed with are pages already.
    for (int64_t index = state.global_end() / kBlockTokens; index < complete_blocks(state); ++index) {
      const PagePool::Page* known = pages.find(parents[static_cast<size_t>(index) + 1]);
      if (known != nullptr && (!known->is_bounded || state.is_bounded())) continue;
      StoredBlock block = stored_block(state, parents, index);
      room.blocks_ -= pages.insert(block, room.blocks_, room.free_);
      room.free_ = std::min(room.free_, room.blocks_);
      if (store == nullptr) continue;
      const PagePool::Page* page = pages.find(block.key);
      if (page != nullptr && page->data == block.data) {
        impl_->to_offer.push_back(block.key);
      } else {
        without_page.push_back(std::move(block));
      }
    }
    pages.touch(parents.subspan(1));
  }
  if (store == nullptr) return;
  offer_blocks(*impl_);
  for (StoredBlock& block : without_page)
    store->write(std::move(block));
}

void KvCache::publish(const SequenceState& state, std::span<const ImageSpan> images, std::string_view salt,
                      Reservation* reservation) {
  const std::vector<BlockKey> parents = parent_chain(impl_->domain(salt), state, images);
  publish_blocks(state, parents, reservation);
}

void KvCache::snapshot(const SequenceState& state, std::span<const ImageSpan> images, std::string_view salt,
                       Reservation* reservation) {
  const std::vector<BlockKey> parents = parent_chain(impl_->domain(salt), state, images);
  publish_blocks(state, parents, reservation);
  // Within a replay the windows are not whole yet, and the blocks say everything else.
  if (state.length() == 0 || state.length() < state.global_end()) return;
  if (impl_->options.snapshot_ram_bytes == 0 && impl_->options.store == nullptr) return;
  // Snapshots are found by the blocks before them, and a model without global KV has none.
  if (state.layout().sources.empty()) return;
  const CacheText text{state.tokens(), images};
  SnapshotPool::Snapshot snapshot;
  snapshot.parent = parents.back();
  snapshot.key = snapshot_key(parents.back(), text, state.length());
  snapshot.bytes = std::make_shared<const std::vector<std::byte>>(write_snapshot(state, images));
  snapshot.info = snapshot_info(state, images);
  SnapshotPool::Gone gone;
  {
    const std::lock_guard lock(impl_->mutex);
    gone = impl_->snapshots.add(std::move(snapshot), text, parents, impl_->now());
  }
  impl_->keep(gone);
}

void KvCache::expire() {
  impl_->expire();
}

KvCache::Stats KvCache::stats() const {
  const std::lock_guard lock(impl_->mutex);
  const PagePool& pages = impl_->pages;
  Stats stats;
  stats.ram_bytes = static_cast<size_t>(pages.count() + pages.displaced()) * pages.block_bytes();
  stats.reserved_bytes = static_cast<size_t>(pages.reserved()) * pages.block_bytes();
  stats.snapshot_bytes = impl_->snapshots.bytes();
  stats.pages = pages.count();
  stats.snapshots = impl_->snapshots.count();
  stats.evicted_pages = pages.evicted();
  return stats;
}

}  // namespace tidepool
