#include "kv/disk_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/folder_lock.h"
#include "base/log.h"
#include "kv/store_family.h"
#include "kv/store_load.h"
#include "kv/store_reader.h"
#include "kv/store_writer.h"

namespace tidepool {
namespace {

using store::Family;
using store::FamilyLog;
using store::IndexEntry;
using store::Place;
using store::StoreIndex;

/// Wall time when made, and from then on a clock that nobody sets: an adjusted clock changes no age.
std::function<int64_t()> steady_wall_clock() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const auto start = std::chrono::steady_clock::now();
  return [wall, start] {
    return std::chrono::duration_cast<std::chrono::seconds>(wall + (std::chrono::steady_clock::now() - start)).count();
  };
}

class DiskStore final : public BlockStore {
 public:
  explicit DiskStore(const DiskStoreOptions& options);

  [[nodiscard]] std::optional<BlockInfo> find(const BlockKey& key) const override;
  [[nodiscard]] Absence absence(const BlockKey& key) const override;
  [[nodiscard]] std::vector<BlockKey> children(const BlockKey& parent, size_t limit) const override;
  [[nodiscard]] std::vector<ReadResult> read(std::span<const BlockKey> keys) override;
  void touch(const BlockKey& key) override;
  bool write(StoredBlock block) override;
  [[nodiscard]] std::vector<BlockKey> take_lost() override;
  [[nodiscard]] std::vector<SnapshotInfo> snapshots(const BlockKey& parent) const override;
  [[nodiscard]] std::optional<StoredSnapshot> read_snapshot(const BlockKey& key) override;
  bool write_snapshot(StoredSnapshot snapshot) override;
  void flush() override;
  [[nodiscard]] Stats stats() const override;

 private:
  [[nodiscard]] int64_t now() const { return now_(); }
  [[nodiscard]] store::ReaderOptions reader_options(const FamilyLog& family);
  /// One round of read(): fills what can be read of `wanted` (indices), and
  /// returns those whose file has gone.
  [[nodiscard]] std::vector<size_t> read_round(std::span<const BlockKey> keys, const std::vector<size_t>& wanted,
                                               std::vector<ReadResult>& results);

  const DiskStoreOptions options_;
  FileSystem& files_;
  std::function<int64_t()> now_;
  std::unique_ptr<FolderLock> lock_;  ///< null when read-only, as is writer_
  FamilyLog blocks_;
  FamilyLog snapshots_;
  store::ReadPool read_pool_;
  std::unique_ptr<store::StoreWriter> writer_;
};

DiskStore::DiskStore(const DiskStoreOptions& options)
    : options_(options),
      files_(options.files != nullptr ? *options.files : real_file_system()),
      now_(options.now ? options.now : steady_wall_clock()),
      blocks_({.files = files_,
               .folder = options.folder,
               .family = Family::kBlocks,
               .capacity_bytes = options.capacity_bytes,
               .ttl = options.ttl,
               .is_read_only = options.is_read_only,
               .evict_first = {}}),
      snapshots_({.files = files_,
                  .folder = options.folder,
                  .family = Family::kSnapshots,
                  .capacity_bytes = options.snapshot_capacity_bytes,
                  .ttl = options.ttl,
                  .is_read_only = options.is_read_only,
                  .evict_first = [this] { return superseded_snapshots(blocks_, snapshots_); }}),
      read_pool_(std::max<size_t>(options.read_threads, 1) - 1) {  // the caller reads, too
  if (!options.is_read_only) {
    make_private_folder(options.folder);
    lock_ = std::make_unique<FolderLock>(options.folder, store::kStorePurpose);
    remove_unfinished_files(options.folder, files_);
  }
  const store::LoadOutcome loaded = load_families(files_, options.folder, blocks_, snapshots_, now());
  if (options.is_read_only) return;
  writer_ = std::make_unique<store::StoreWriter>(
      store::WriterOptions{.files = files_,
                           .folder = options.folder,
                           .blocks = blocks_,
                           .snapshots = snapshots_,
                           .ttl = options.ttl,
                           .queue_bytes = options.queue_bytes,
                           .compresses = options.compresses,
                           .rows = options.layout ? store::rows_of(*options.layout) : std::vector<store::RowRun>{},
                           .now = now_,
                           .rewrites_uses = loaded.needs_rewrite});
}

std::optional<BlockStore::BlockInfo> DiskStore::find(const BlockKey& key) const {
  return blocks_.with_index([&](const StoreIndex& index) -> std::optional<BlockInfo> {
    const IndexEntry* entry = index.find(key, now());
    if (entry == nullptr) return std::nullopt;
    return BlockInfo{entry->is_bounded};
  });
}

Absence DiskStore::absence(const BlockKey& key) const {
  return blocks_.with_index([&](const StoreIndex& index) { return index.absence(key, now()); });
}

std::vector<BlockKey> DiskStore::children(const BlockKey& parent, size_t limit) const {
  return blocks_.with_index([&](const StoreIndex& index) {
    std::vector<BlockKey> keys;
    for (const IndexEntry* entry : index.children(parent, limit, now()))
      keys.push_back(entry->key);
    return keys;
  });
}

store::ReaderOptions DiskStore::reader_options(const FamilyLog& family) {
  return {.files = files_, .path = [&family](uint32_t segment) { return family.path(segment); }, .pool = read_pool_};
}

/// What a reading thread could not read, or found otherwise than it was
/// written, is told to the family.
void note_damage(FamilyLog& family, const store::RecordRequest& request) {
  log_warning("KV store: {} is damaged at byte {}: a miss", family.path(request.place.segment).string(),
              request.place.offset);
  family.drop_damaged(request.key, request.place);
}

std::vector<size_t> DiskStore::read_round(std::span<const BlockKey> keys, const std::vector<size_t>& wanted,
                                          std::vector<ReadResult>& results) {
  std::vector<store::RecordRequest> requests;
  std::vector<size_t> targets;
  blocks_.with_index([&](const StoreIndex& index) {
    for (const size_t i : wanted) {
      if (const IndexEntry* entry = index.find(keys[i], now())) {
        requests.push_back({keys[i], entry->place});
        targets.push_back(i);
      } else {
        results[i].absence = index.absence(keys[i], now());
      }
    }
  });
  std::vector<uint8_t> is_gone(requests.size());
  const auto take = [&](size_t at, store::ReadOutcome outcome, const store::RecordView* record) {
    ReadResult& result = results[targets[at]];
    KvBlock data(record != nullptr ? record->meta.raw_bytes : 0);
    if (record != nullptr && expand_payload(*record, data.span())) {
      result.block = StoredBlock{.key = record->meta.key,
                                 .parent = record->meta.parent,
                                 .index = record->meta.index,
                                 .is_bounded = record->meta.is_bounded,
                                 .tokens = record->tokens,
                                 .data = std::make_shared<const KvBlock>(std::move(data))};
    } else if (outcome == store::ReadOutcome::kGone) {
      is_gone[at] = 1;
      result.absence = Absence::kEvicted;
    } else if (outcome == store::ReadOutcome::kFailed) {
      result.absence = Absence::kUnreadable;
      blocks_.note_failed_read(requests[at].key, requests[at].place);
    } else {
      result.absence = Absence::kChecksum;
      note_damage(blocks_, requests[at]);
    }
  };
  store::read_records(reader_options(blocks_), requests, take);
  std::vector<size_t> again;
  for (size_t at = 0; at < requests.size(); ++at) {
    if (is_gone[at] == 0) continue;
    const Place& place = requests[at].place;
    if (blocks_.has_moved(requests[at].key, place)) {
      again.push_back(targets[at]);
    } else {
      blocks_.drop_segment(place.segment);  // somebody removed the file
    }
  }
  return again;
}

std::vector<BlockStore::ReadResult> DiskStore::read(std::span<const BlockKey> keys) {
  std::vector<ReadResult> results(keys.size());
  std::vector<size_t> wanted(keys.size());
  std::iota(wanted.begin(), wanted.end(), size_t{0});
  // A segment may be reclaimed between looking up and reading: its records lie elsewhere then.
  for (int round = 0; round < 3 && !wanted.empty(); ++round)
    wanted = read_round(keys, wanted, results);
  return results;
}

void DiskStore::touch(const BlockKey& key) {
  const bool is_news = blocks_.change_index([&](StoreIndex& index) { return index.use(key, now()); });
  if (is_news && writer_) writer_->note_use(key);
}

bool DiskStore::write(StoredBlock block) {
  if (!writer_) return false;
  const bool is_there =
      blocks_.with_index([&](const StoreIndex& index) { return index.has(block.key, block.is_bounded, now()); });
  return is_there || writer_->write(std::move(block));
}

std::vector<BlockKey> DiskStore::take_lost() {
  // While the disk refuses, new blocks are enough to find out when it does not
  // any more.
  if (!writer_ || !writer_->stats().last_error.empty()) return {};
  return blocks_.take_lost();
}

std::vector<BlockStore::SnapshotInfo> DiskStore::snapshots(const BlockKey& parent) const {
  return snapshots_.with_index([&](const StoreIndex& index) {
    std::vector<const IndexEntry*> entries = index.children(parent, index.size(), now());
    std::ranges::sort(entries, [](const IndexEntry* a, const IndexEntry* b) {
      return std::tie(a->written, a->index) > std::tie(b->written, b->index);
    });
    std::vector<SnapshotInfo> result;
    result.reserve(entries.size());
    for (const IndexEntry* entry : entries)
      result.push_back({entry->key, entry->index});
    return result;
  });
}

std::optional<StoredSnapshot> DiskStore::read_snapshot(const BlockKey& key) {
  std::vector<store::RecordRequest> requests;
  const bool is_news = snapshots_.change_index([&](StoreIndex& index) {
    const IndexEntry* entry = index.find(key, now());
    if (entry == nullptr) return false;
    requests.push_back({key, entry->place});
    return index.use(key, now());
  });
  std::optional<StoredSnapshot> result;
  const auto take = [&](size_t at, store::ReadOutcome outcome, const store::RecordView* record) {
    std::vector<std::byte> bytes(record != nullptr ? record->meta.raw_bytes : 0);
    if (record != nullptr && expand_payload(*record, bytes)) {
      result = StoredSnapshot{.key = record->meta.key,
                              .parent = record->meta.parent,
                              .length = record->meta.index,
                              .is_bounded = record->meta.is_bounded,
                              .bytes = std::move(bytes)};
    } else if (outcome == store::ReadOutcome::kGone) {
      snapshots_.drop_segment(requests[at].place.segment);
    } else if (outcome == store::ReadOutcome::kFailed) {
      snapshots_.note_failed_read(requests[at].key, requests[at].place);
    } else {
      note_damage(snapshots_, requests[at]);
    }
  };
  store::read_records(reader_options(snapshots_), requests, take);
  if (is_news && writer_) writer_->note_use(key);
  return result;
}

bool DiskStore::write_snapshot(StoredSnapshot snapshot) {
  if (!writer_) return false;
  const bool is_there = snapshots_.with_index(
      [&](const StoreIndex& index) { return index.has(snapshot.key, snapshot.is_bounded, now()); });
  return is_there || writer_->write(std::move(snapshot));
}

void DiskStore::flush() {
  if (writer_) writer_->flush();
}

BlockStore::Stats DiskStore::stats() const {
  const store::FamilyStats blocks = blocks_.stats();
  const store::FamilyStats snapshots = snapshots_.stats();
  const store::StoreWriter::Stats writer = writer_ ? writer_->stats() : store::StoreWriter::Stats{};
  Stats stats;
  stats.blocks = static_cast<int64_t>(blocks.records);
  stats.snapshots = static_cast<int64_t>(snapshots.records);
  stats.disk_bytes = blocks.file_bytes + snapshots.file_bytes + writer.uses_bytes;
  stats.written_bytes = writer.written_bytes;
  stats.dropped_writes = writer.dropped_writes;
  stats.bad_records = blocks_.bad_records() + snapshots_.bad_records();
  stats.failed_reads = blocks_.failed_reads() + snapshots_.failed_reads();
  stats.queued = writer.queued;
  stats.last_error = writer.last_error;
  return stats;
}

}  // namespace

void check_store_options(const DiskStoreOptions& options) {
  for (const auto& [bytes, name] : {std::pair{options.capacity_bytes, "--kv-disk"},
                                    std::pair{options.snapshot_capacity_bytes, "--snapshot-disk"}}) {
    if (bytes < kStoreCapacityMin) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} {} is too small: at least {} bytes are needed", name, bytes, kStoreCapacityMin));
    }
  }
  if (options.ttl.count() <= 0) throw Error(ErrorCode::kInvalidArgument, "--kv-ttl must be positive");
}

std::unique_ptr<BlockStore> open_disk_store(const DiskStoreOptions& options) {
  check_store_options(options);
  return std::make_unique<DiskStore>(options);
}

std::filesystem::path default_store_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::filesystem::path(cache) / "tidepool" / "kv";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return std::filesystem::path(home) / ".cache" / "tidepool" / "kv";
  throw Error(ErrorCode::kInvalidArgument, "neither XDG_CACHE_HOME nor HOME is set: name a folder with --kv-dir");
}

}  // namespace tidepool
