#include "kv/store_writer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace tidepool::store {
namespace {

/// Written at most between two syncs: what a loss of power can cost beyond what was acknowledged.
constexpr uint64_t kUnsyncedBytesMax = uint64_t{32} << 20;
/// And this long after the last write at the latest.
constexpr std::chrono::seconds kSyncAfter{1};
/// Uses that may wait for the thread; they are few, one for each request.
constexpr size_t kQueuedUsesMax = 65536;
/// The file of uses is rewritten with what still matters when it has grown to this.
constexpr uint64_t kUsesBytesMax = uint64_t{4} << 20;
/// The niceness of the thread: the engine comes first.
constexpr int kNiceness = 10;

RecordMeta meta_of(const StoredBlock& block, int64_t now) {
  return {.kind = RecordKind::kBlock,
          .is_bounded = block.is_bounded,
          .index = block.index,
          .time = now,
          .key = block.key,
          .parent = block.parent};
}

RecordMeta meta_of(const StoredSnapshot& snapshot, int64_t now) {
  return {.kind = RecordKind::kSnapshot,
          .is_bounded = snapshot.is_bounded,
          .index = snapshot.length,
          .time = now,
          .key = snapshot.key,
          .parent = snapshot.parent};
}

}  // namespace

StoreWriter::StoreWriter(WriterOptions options) : options_(std::move(options)), swept_(options_.now()) {
  if (options_.rewrites_uses) try_disk([&] { rewrite_all_uses(); });
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

StoreWriter::~StoreWriter() {
  thread_.request_stop();
  thread_.join();
}

bool StoreWriter::enqueue(Item item, const BlockKey& key, bool is_bounded, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Pending& pending = pending_.at(item.index());
  const auto queued = pending.find(key);
  if (queued != pending.end() && (is_bounded || !queued->second)) return true;
  if (queued_bytes_ + bytes > options_.queue_bytes) {
    dropped_writes_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  pending[key] = is_bounded;
  queue_.emplace_back(std::move(item), bytes);
  queued_bytes_ += bytes;
  wakes_thread_.notify_one();
  return true;
}

bool StoreWriter::write(StoredBlock block) {
  TIDEPOOL_CHECK(block.data != nullptr, "a block without data");
  const BlockKey key = block.key;
  const bool is_bounded = block.is_bounded;
  const uint64_t bytes = block.data->size() + kHeaderBytes + block.tokens.size() * sizeof(int32_t);
  return enqueue(std::move(block), key, is_bounded, bytes);
}

bool StoreWriter::write(StoredSnapshot snapshot) {
  const BlockKey key = snapshot.key;
  const bool is_bounded = snapshot.is_bounded;
  const uint64_t bytes = snapshot.bytes.size() + kHeaderBytes;
  return enqueue(std::move(snapshot), key, is_bounded, bytes);
}

void StoreWriter::note_use(const BlockKey& key) {
  const std::lock_guard lock(mutex_);
  if (queued_uses_.size() < kQueuedUsesMax) queued_uses_.push_back(key);
  wakes_thread_.notify_one();
}

void StoreWriter::flush() {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = ++tickets_;
  queue_.emplace_back(Barrier{ticket}, 0);
  wakes_thread_.notify_one();
  wakes_flush_.wait(lock, [&] { return tickets_done_ >= ticket; });
}

StoreWriter::Stats StoreWriter::stats() const {
  Stats stats;
  stats.written_bytes = written_bytes_.load(std::memory_order_relaxed);
  stats.dropped_writes = dropped_writes_.load(std::memory_order_relaxed);
  stats.uses_bytes = uses_bytes_.load(std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  stats.queued = queue_.size();
  stats.last_error = last_error_;
  return stats;
}

bool StoreWriter::try_disk(const std::function<void()>& work) {
  try {
    work();
    return true;
  } catch (const std::exception& error) {  // the disk, or no memory
    const std::string text = error.what();
    // One line for each kind of failure, not for each block: the kind is the reason at the end of the message.
    if (reported_.insert(text.substr(text.rfind(": ") + 1)).second) {
      log_error("KV store: {}; what cannot be kept is dropped, and the next is tried again", text);
    }
    const std::lock_guard lock(mutex_);
    last_error_ = text;
    return false;
  }
}

void StoreWriter::write_record(FamilyLog& family, const RecordToWrite& record) {
  uint64_t bytes = 0;
  const bool is_written = try_disk([&] {
    const std::vector<std::byte> encoded = encode_record(record, {.is_on = options_.compresses, .rows = options_.rows});
    // The time is that of the record: what was used later than it was written
    // has been read since.
    family.append(*decode_header(encoded), encoded, record.meta.time);
    bytes = encoded.size();
  });
  if (is_written) {
    reported_.clear();
    unsynced_bytes_ += bytes;
    written_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  } else {
    dropped_writes_.fetch_add(1, std::memory_order_relaxed);
    if (record.meta.kind == RecordKind::kBlock) family.note_lost(record.meta.key);
  }
  const std::lock_guard lock(mutex_);
  if (is_written) last_error_.clear();
  pending_.at(record.meta.kind == RecordKind::kBlock ? 0 : 1).erase(record.meta.key);
}

void StoreWriter::process(Item& item) {
  if (const auto* block = std::get_if<StoredBlock>(&item)) {
    write_record(options_.blocks,
                 {.meta = meta_of(*block, options_.now()), .tokens = block->tokens, .payload = block->data->span()});
    // Whoever computed a block has used those before it; that follows from the block itself after a restart.
    static_cast<void>(
        options_.blocks.change_index([&](StoreIndex& index) { return index.use(block->parent, options_.now()); }));
  } else if (const auto* snapshot = std::get_if<StoredSnapshot>(&item)) {
    write_record(options_.snapshots,
                 {.meta = meta_of(*snapshot, options_.now()), .tokens = {}, .payload = snapshot->bytes});
  } else {
    save_uses();
    sync_all();
    const std::lock_guard lock(mutex_);
    tickets_done_ = std::get<Barrier>(item).ticket;
    wakes_flush_.notify_all();
  }
}

void StoreWriter::save_uses() {
  std::vector<BlockKey> keys;
  {
    const std::lock_guard lock(mutex_);
    keys.swap(queued_uses_);
  }
  if (!keys.empty()) try_disk([&] { append_uses(keys); });
}

void StoreWriter::append_uses(const std::vector<BlockKey>& keys) {
  if (uses_ && uses_->bytes() < kUsesBytesMax) {
    for (const BlockKey& key : keys)
      uses_->append({.key = key, .time = options_.now()});
  } else {
    rewrite_all_uses();
  }
  uses_bytes_.store(uses_->bytes(), std::memory_order_relaxed);
}

void StoreWriter::rewrite_all_uses() {
  std::vector<Use> all;
  for (const FamilyLog* family : {&options_.blocks, &options_.snapshots}) {
    const std::vector<Use> some = family->with_index([](const StoreIndex& index) { return index.distinct_uses(); });
    all.insert(all.end(), some.begin(), some.end());
  }
  uses_.reset();
  rewrite_uses(options_.files, options_.folder, all);
  uses_ = std::make_unique<UsesWriter>(options_.files, options_.folder);
}

void StoreWriter::sync_all() {
  try_disk([&] { options_.blocks.sync(); });
  try_disk([&] { options_.snapshots.sync(); });
  if (uses_) try_disk([&] { uses_->sync(); });
  unsynced_bytes_ = 0;
}

void StoreWriter::sweep_when_due() {
  // Every hundredth of the time to live is often enough: what is expired is not found in between either.
  const int64_t interval = std::max<int64_t>(60, options_.ttl.count() / 100);
  const int64_t now = options_.now();
  if (now - swept_ < interval && now >= swept_) return;
  swept_ = now;
  try_disk([&] { options_.blocks.sweep(now); });
  try_disk([&] { options_.snapshots.sweep(now); });
}

void StoreWriter::run(const std::stop_token& stop) {
  // Where the system does not permit it, the thread runs like any other.
  static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness));
  while (true) {
    std::optional<Item> item;
    {
      std::unique_lock lock(mutex_);
      const auto has_work = [&] { return !queue_.empty() || !queued_uses_.empty(); };
      const std::chrono::seconds patience = unsynced_bytes_ > 0 ? kSyncAfter : std::chrono::seconds(60);
      if (!wakes_thread_.wait_for(lock, stop, patience, has_work) && stop.stop_requested()) break;
      if (!queue_.empty()) {
        item = std::move(queue_.front().first);
        queued_bytes_ -= queue_.front().second;
        queue_.pop_front();
      }
    }
    try {
      if (item) {
        process(*item);
      } else {
        save_uses();
      }
    } catch (const std::exception& error) {  // no memory outside of the disk's work:
                                             // this one is lost, not the thread
      dropped_writes_.fetch_add(1, std::memory_order_relaxed);
      log_error(
          "KV store: {}; what cannot be kept is dropped, and the next is "
          "tried again",
          error.what());
    }
    if (unsynced_bytes_ > (item ? kUnsyncedBytesMax : 0)) sync_all();
    sweep_when_due();
  }
  save_uses();
  sync_all();
}

}  // namespace tidepool::store
