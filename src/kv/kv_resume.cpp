#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/kv_cache_internal.h"

namespace tidepool {
namespace {

/// Kept contexts that are compared with a prompt to say where it first differs; more would not say more.
constexpr size_t kComparedMax = 16;

/// A block of the prompt that is kept somewhere.
struct KnownBlock {
  std::shared_ptr<const KvBlock> data;  ///< null: on disk only
  bool is_bounded = false;
  bool is_from_disk = false;
};

/// A snapshot that serves the first `reach` tokens of the prompt.
struct FoundSnapshot {
  size_t blocks = 0;  ///< complete blocks below it
  int64_t reach = 0;
  SnapshotInfo info;
  BlockKey key;
  std::shared_ptr<const std::vector<std::byte>> bytes;
  bool is_from_disk = false;
};

/// One call of resume().
class Resumption {
 public:
  Resumption(KvCache::Impl& cache, const KvCache::Query& query)
      : cache_(cache),
        query_(query),
        layout_(*cache.layout),
        store_(cache.options.store.get()),
        length_(static_cast<int64_t>(query.text.tokens.size())),
        root_(root_key(cache.domain(query.salt))),
        chain_(block_chain(cache.domain(query.salt), query.text)) {}

  KvCache::Resumed run();

 private:
  [[nodiscard]] const BlockKey& parent(size_t blocks) const { return blocks == 0 ? root_ : chain_[blocks - 1]; }
  void find_blocks();
  void find_store_blocks();
  [[nodiscard]] int64_t replay_from(int64_t hit) const;
  [[nodiscard]] bool is_usable(const SnapshotInfo& info, int64_t reach) const;
  [[nodiscard]] bool has_bounded(size_t blocks) const;
  [[nodiscard]] std::optional<FoundSnapshot> find_snapshot(int64_t at_least) const;
  void try_ram_snapshots(size_t blocks, std::optional<FoundSnapshot>& best) const;
  void try_disk_snapshots(size_t blocks, std::optional<FoundSnapshot>& best) const;
  [[nodiscard]] bool load(size_t blocks);
  void use(size_t blocks);
  [[nodiscard]] std::vector<std::shared_ptr<const KvBlock>> data(size_t blocks) const;
  [[nodiscard]] SequenceState from_snapshot(const FoundSnapshot& snapshot);
  [[nodiscard]] SequenceState from_blocks(size_t blocks, int64_t from);
  void explain();
  void explain_difference();
  [[nodiscard]] int64_t common_with(std::span<const int32_t> ids) const;

  KvCache::Impl& cache_;
  const KvCache::Query& query_;
  const KvLayout& layout_;
  BlockStore* store_;
  int64_t length_;  ///< of the prompt
  BlockKey root_;
  std::vector<BlockKey> chain_;
  std::vector<KnownBlock> known_;          ///< the longest prefix of the chain that is kept
  Absence absence_ = Absence::kNeverSeen;  ///< why the next block is not there
  CacheReport report_;
};

KvCache::Resumed Resumption::run() {
  report_.prompt_tokens = length_;
  find_blocks();
  SequenceState state(cache_.layout);
  bool is_below_break_even = false;
  // Each round ends the search, or finds that fewer blocks can be had than it seemed.
  for (;;) {
    const auto blocks = std::min(known_.size(), static_cast<size_t>((length_ - 1) / kBlockTokens));
    const int64_t from = replay_from(static_cast<int64_t>(blocks) * kBlockTokens);
    const std::optional<FoundSnapshot> snapshot = find_snapshot(std::max<int64_t>(from, 1));
    is_below_break_even = !snapshot && blocks > 0 && from == 0;
    const size_t needed = snapshot ? snapshot->blocks : (from > 0 ? blocks : 0);
    if (!load(needed)) continue;
    if (snapshot) {
      state = from_snapshot(*snapshot);
    } else if (needed > 0) {
      state = from_blocks(needed, from);
    }
    use(needed);
    break;
  }
  report_.is_exact = !state.is_bounded();
  explain();
  if (is_below_break_even) report_.end = MatchEnd::kBelowBreakEven;
  return {std::move(state), report_};
}

/// The longest prefix of the chain over pages and disk. What is found in RAM stays there while this search holds it.
void Resumption::find_blocks() {
  {
    const std::lock_guard lock(cache_.mutex);
    for (const BlockKey& key : chain_) {
      const PagePool::Page* page = cache_.pages.find(key);
      const bool is_wanted = page != nullptr && !(query_.exact_only && page->is_bounded);
      if (!is_wanted && store_ == nullptr) break;
      known_.push_back(is_wanted ? KnownBlock{page->data, page->is_bounded, false} : KnownBlock{});
    }
  }
  if (store_ != nullptr) find_store_blocks();
  if (known_.size() == chain_.size()) return;
  const BlockKey& missing = chain_[known_.size()];
  if (store_ != nullptr) absence_ = store_->absence(missing);
  if (absence_ != Absence::kNeverSeen) return;
  const std::lock_guard lock(cache_.mutex);
  absence_ = cache_.pages.absence(missing);
}

void Resumption::find_store_blocks() {
  for (size_t i = 0; i < known_.size(); ++i) {
    if (known_[i].data) continue;
    const std::optional<BlockStore::BlockInfo> info = store_->find(chain_[i]);
    if (!info || (query_.exact_only && info->is_bounded)) {
      known_.resize(i);
      return;
    }
    known_[i] = {nullptr, info->is_bounded, true};
  }
}

/// Where a sequence that has blocks up to `hit` begins to read: 0 when it would have to read everything.
int64_t Resumption::replay_from(int64_t hit) const {
  if (!query_.exact_replay) return std::max<int64_t>(hit - layout_.window, 0);
  // The encoder's global KV is to be exact from the hit on, and its output where the decoder begins.
  const int64_t for_encoder = hit - layout_.encoder_halo();
  const int64_t for_decoder = length_ - 1 - layout_.decoder_halo() - layout_.encoder_halo();
  return std::max<int64_t>(std::min(for_encoder, for_decoder), 0);
}

/// Whether one of the first `blocks` blocks lies behind a bounded replay.
bool Resumption::has_bounded(size_t blocks) const {
  return std::ranges::any_of(std::span(known_).first(blocks), &KnownBlock::is_bounded);
}

/// Whether a snapshot, taken back to `reach`, serves this prompt.
bool Resumption::is_usable(const SnapshotInfo& info, int64_t reach) const {
  const SequenceMarks& marks = info.marks;
  // Its blocks may have gone since and been computed again behind a bounded replay.
  if (query_.exact_replay && has_bounded(static_cast<size_t>(info.length / kBlockTokens))) return false;
  if (reach < 1 || reach < marks.global_end || reach < marks.longest - layout_.rollback_max) return false;
  if (marks.is_bounded && (query_.exact_only || query_.exact_replay)) return false;
  const int64_t decoder_deep = std::max<int64_t>(layout_.decoder_halo() - (layout_.window - 1), 0);
  const int64_t decoder_rows = layout_.window + (query_.exact_replay ? decoder_deep : 0);
  if (length_ - decoder_rows >= reach) return true;  // the decoder's windows begin anew
  // It goes on with the windows of the snapshot: they must be there (a prompt that was stopped half-way lacks them),
  // and exact if that is asked for.
  if (marks.decoder_end < reach) return false;
  if (!query_.exact_replay || marks.decoder_begin == 0) return true;
  const int64_t encoder_exact = marks.encoder_begin == 0 ? 0 : marks.encoder_begin + layout_.encoder_halo();
  return std::max(marks.decoder_begin, encoder_exact) + decoder_deep <= reach - layout_.window + 1;
}

/// The snapshot that serves most of the prompt, and at least so many tokens.
std::optional<FoundSnapshot> Resumption::find_snapshot(int64_t at_least) const {
  std::optional<FoundSnapshot> best;
  for (size_t blocks = known_.size();; --blocks) {
    if (static_cast<int64_t>(blocks + 1) * kBlockTokens - 1 < at_least) break;
    try_ram_snapshots(blocks, best);
    if (store_ != nullptr) try_disk_snapshots(blocks, best);
    if (best || blocks == 0) break;
  }
  return best && best->reach >= at_least ? best : std::nullopt;
}

void Resumption::try_ram_snapshots(size_t blocks, std::optional<FoundSnapshot>& best) const {
  std::vector<std::shared_ptr<const SnapshotPool::Snapshot>> candidates;
  {
    const std::lock_guard lock(cache_.mutex);
    candidates = cache_.snapshots.find(parent(blocks));
  }
  const int64_t begin = static_cast<int64_t>(blocks) * kBlockTokens;
  for (const auto& candidate : candidates) {
    const int64_t common = common_tokens(query_.text, begin, candidate->info.tail, candidate->info.images);
    const int64_t reach = std::min(begin + common, length_ - 1);
    if ((best && reach <= best->reach) || !is_usable(candidate->info, reach)) continue;
    best = FoundSnapshot{blocks, reach, candidate->info, candidate->key, candidate->bytes, false};
  }
}

/// Those on disk are known by their keys alone, so only one that the prompt continues is found.
void Resumption::try_disk_snapshots(size_t blocks, std::optional<FoundSnapshot>& best) const {
  for (const BlockStore::SnapshotInfo& candidate : store_->snapshots(parent(blocks))) {
    if (candidate.length > length_ || candidate.length / kBlockTokens != static_cast<int64_t>(blocks)) continue;
    const int64_t reach = std::min(candidate.length, length_ - 1);
    if (best && reach <= best->reach) continue;
    if (candidate.key != snapshot_key(parent(blocks), query_.text, candidate.length)) continue;
    std::optional<StoredSnapshot> stored = store_->read_snapshot(candidate.key);
    if (!stored) continue;
    std::optional<SnapshotInfo> info = read_snapshot_info(layout_, stored->bytes);
    if (!info || info->length != candidate.length || !is_usable(*info, reach)) continue;
    const int64_t begin = static_cast<int64_t>(blocks) * kBlockTokens;
    if (common_tokens(query_.text, begin, info->tail, info->images) != candidate.length - begin) continue;
    best = FoundSnapshot{blocks,
                         reach,
                         std::move(*info),
                         candidate.key,
                         std::make_shared<const std::vector<std::byte>>(std::move(stored->bytes)),
                         true};
  }
}

/// Brings the first `blocks` blocks into RAM. False when some cannot be had: known_ then ends before the first of them.
bool Resumption::load(size_t blocks) {
  std::vector<size_t> missing;
  for (size_t i = 0; i < blocks; ++i)
    if (!known_[i].data) missing.push_back(i);
  if (missing.empty()) return true;
  int64_t room = 0;
  {
    const std::lock_guard lock(cache_.mutex);
    room = cache_.pages.reserve_up_to(static_cast<int64_t>(missing.size()));
  }
  if (room < static_cast<int64_t>(missing.size())) {
    cache_.release(room, room);
    known_.resize(missing[static_cast<size_t>(room)]);
    absence_ = Absence::kEvicted;  // pages of others hold the room
    return false;
  }
  std::vector<BlockKey> keys;
  keys.reserve(missing.size());
  for (const size_t i : missing)
    keys.push_back(chain_[i]);
  std::vector<BlockStore::ReadResult> results = store_->read(keys);
  TIDEPOOL_CHECK(results.size() == keys.size(), "a store answers for every key");
  const std::lock_guard lock(cache_.mutex);
  for (size_t i = 0; i < missing.size(); ++i) {
    std::optional<StoredBlock>& block = results[i].block;
    const bool is_whole = block && block->data && block->data->size() == layout_.block_bytes && block->key == keys[i];
    if (!is_whole || (query_.exact_only && block->is_bounded)) {
      known_.resize(missing[i]);
      absence_ = block ? Absence::kChecksum : results[i].absence;
      if (absence_ != Absence::kUnreadable) cache_.pages.remember_absence(keys[i], absence_);
      cache_.pages.release(room, room);
      return false;
    }
    block->parent = parent(missing[i]);
    block->index = static_cast<int64_t>(missing[i]);
    room -= cache_.pages.insert(*block, room, room);
    // Another search may have brought it in meanwhile: one copy is counted, so one copy is used.
    const PagePool::Page* page = cache_.pages.find(keys[i]);
    TIDEPOOL_CHECK(page != nullptr, "there was room for the block");
    known_[missing[i]] = {page->data, page->is_bounded, true};
  }
  cache_.pages.release(room, room);
  return true;
}

/// Whatever is taken counts as used now, in RAM and on disk.
void Resumption::use(size_t blocks) {
  if (blocks == 0) return;
  {
    const std::lock_guard lock(cache_.mutex);
    cache_.pages.touch(std::span(chain_).first(blocks));
  }
  if (store_ != nullptr) store_->touch(chain_[blocks - 1]);
}

std::vector<std::shared_ptr<const KvBlock>> Resumption::data(size_t blocks) const {
  std::vector<std::shared_ptr<const KvBlock>> result;
  result.reserve(blocks);
  for (size_t i = 0; i < blocks; ++i)
    result.push_back(known_[i].data);
  return result;
}

SequenceState Resumption::from_snapshot(const FoundSnapshot& snapshot) {
  const auto tokens = query_.text.tokens.first(snapshot.blocks * kBlockTokens);
  std::optional<SequenceState> state = restore_snapshot(cache_.layout, *snapshot.bytes, tokens, data(snapshot.blocks));
  TIDEPOOL_CHECK(state.has_value(), "the snapshot was checked when it was found");
  if (has_bounded(snapshot.blocks)) state->mark_bounded();
  state->rollback(snapshot.reach);
  {
    const std::lock_guard lock(cache_.mutex);
    cache_.snapshots.touch(snapshot.key, cache_.now());
  }
  report_.hit_tokens = snapshot.reach;
  bool is_from_disk = snapshot.is_from_disk;
  for (size_t i = 0; i < snapshot.blocks; ++i) {
    is_from_disk = is_from_disk || known_[i].is_from_disk;
    if (known_[i].is_from_disk) report_.disk_tokens += kBlockTokens;
  }
  const int64_t tail = std::max<int64_t>(snapshot.reach - snapshot.info.tail_begin(), 0);
  if (snapshot.is_from_disk) report_.disk_tokens += tail;
  report_.disk_tokens = std::min(report_.disk_tokens, report_.hit_tokens);
  report_.pages_tokens = report_.hit_tokens - report_.disk_tokens;
  report_.tier = is_from_disk ? CacheTier::kSnapshotDisk : CacheTier::kSnapshotRam;
  return std::move(*state);
}

SequenceState Resumption::from_blocks(size_t blocks, int64_t from) {
  SequenceState state =
      SequenceState::resume(cache_.layout, query_.text.tokens.first(static_cast<size_t>(from)), data(blocks));
  report_.tier = CacheTier::kPages;
  for (size_t i = 0; i < blocks; ++i) {
    if (known_[i].is_bounded) state.mark_bounded();
    if (known_[i].is_from_disk) report_.disk_tokens += kBlockTokens;
    if (known_[i].is_from_disk) report_.tier = CacheTier::kDisk;
  }
  report_.hit_tokens = static_cast<int64_t>(blocks) * kBlockTokens;
  report_.pages_tokens = report_.hit_tokens - report_.disk_tokens;
  report_.replayed_tokens = report_.hit_tokens - from;
  return state;
}

/// Why no more than the known blocks was found.
void Resumption::explain() {
  const size_t known = known_.size();
  report_.end = report_.hit_tokens > 0 ? MatchEnd::kComplete : MatchEnd::kNotSeen;
  if (static_cast<int64_t>(known) * kBlockTokens >= length_) return;
  switch (known < chain_.size() ? absence_ : Absence::kNeverSeen) {
    case Absence::kNeverSeen: return explain_difference();
    case Absence::kEvicted: report_.end = MatchEnd::kEvicted; return;
    case Absence::kExpired: report_.end = MatchEnd::kExpired; return;
    case Absence::kChecksum: report_.end = MatchEnd::kChecksum; return;
    case Absence::kUnreadable: report_.end = MatchEnd::kUnreadable; return;
  }
}

/// How many tokens behind the known blocks agree with the ids of another block there.
int64_t Resumption::common_with(std::span<const int32_t> ids) const {
  const auto tokens = query_.text.tokens.subspan(known_.size() * kBlockTokens);
  const size_t most = std::min(tokens.size(), ids.size());
  size_t common = 0;
  while (common < most && tokens[common].id == ids[common])
    ++common;
  if (common < static_cast<size_t>(kBlockTokens)) return static_cast<int64_t>(common);
  // The same ids under another key: another picture.
  const auto image = std::ranges::find_if(tokens, &InputToken::is_image);
  return std::min<int64_t>(image - tokens.begin(), kBlockTokens);
}

/// Finds the kept context that agrees longest and goes on differently.
void Resumption::explain_difference() {
  const size_t known = known_.size();
  const int64_t begin = static_cast<int64_t>(known) * kBlockTokens;
  int64_t common = -1;
  bool goes_on = false;  // one that agrees so long has more to say
  const auto compare = [&](int64_t shared, bool has_more) {
    if (shared > common) goes_on = false;
    if (shared >= common) goes_on = goes_on || has_more;
    common = std::max(common, shared);
  };
  const BlockKey* own = known < chain_.size() ? &chain_[known] : nullptr;
  size_t compared = 0;
  {
    const std::lock_guard lock(cache_.mutex);
    for (const PagePool::Page* page : cache_.pages.children(parent(known), kComparedMax)) {
      if (own != nullptr && cache_.pages.find(*own) == page) continue;  // left out for being bounded
      compare(common_with(page->tokens), true);
      ++compared;
    }
    for (const auto& snapshot : cache_.snapshots.find(parent(known))) {
      const int64_t shared = common_tokens(query_.text, begin, snapshot->info.tail, snapshot->info.images);
      compare(shared, shared < static_cast<int64_t>(snapshot->info.tail.size()));
    }
  }
  if (store_ != nullptr && compared == 0) {
    for (const BlockKey& key : store_->children(parent(known), 1)) {
      if (own != nullptr && key == *own) continue;
      const std::vector<BlockStore::ReadResult> read = store_->read({&key, 1});
      if (read.front().block) compare(common_with(read.front().block->tokens), true);
    }
  }
  const bool has_beginning = begin + common > 0;
  if (!goes_on || !has_beginning || begin + common >= length_) return;
  report_.end = MatchEnd::kDiffers;
  report_.first_difference = begin + common;
}

}  // namespace

KvCache::Resumed resume_prompt(KvCache::Impl& cache, const KvCache::Query& query) {
  return Resumption(cache, query).run();
}

}  // namespace tidepool
