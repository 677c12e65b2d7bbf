#include "kv/store_family.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace tidepool::store {
namespace {

/// Segments are this large, or a share of a small capacity, as space is given back by whole segments.
constexpr uint64_t kSegmentBytesMax = uint64_t{64} << 20;
constexpr uint64_t kSegmentsOfCapacity = 32;
/// Records may take this share of the capacity: the rest is for what is dead but not given back yet. The more of it,
/// the less must be moved to reclaim a segment.
constexpr double kLiveShareMax = 0.85;
/// Evicted at a time, as a share of the capacity: a scan of the whole index each time.
constexpr double kEvictionShare = 0.05;
/// A segment with more live bytes than this is not worth moving: more is evicted first.
constexpr double kWorthMoving = 0.8;
/// A sweep moves the rest of a segment that has expired but for this share.
constexpr double kSweepShare = 0.3;
/// The disk refused a segment this often: another one is begun.
constexpr int kFailuresMax = 3;
/// More lost records are not remembered: 2 MB of keys.
constexpr size_t kLostMax = 65'536;

bool try_read(const File& file, uint64_t offset, std::span<std::byte> out) {
  try {
    file.read_exactly(offset, out);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

FamilyLog::FamilyLog(FamilyOptions options) : options_(std::move(options)), index_(options_.ttl) {}

uint64_t FamilyLog::segment_bytes_max() const {
  return std::min(kSegmentBytesMax, options_.capacity_bytes / kSegmentsOfCapacity);
}

void FamilyLog::load() {
  std::vector<uint32_t> ids;
  for (const auto& file : std::filesystem::directory_iterator(options_.folder)) {
    const auto parsed = parse_segment_name(file.path().filename().string());
    if (parsed && parsed->first == options_.family) ids.push_back(parsed->second);
  }
  std::ranges::sort(ids);
  if (!ids.empty()) next_id_ = ids.back() + 1;
  for (const uint32_t id : ids) {
    try {
      load_segment(id);
    } catch (const Error& error) {
      log_warning("KV store: {}; its records are not used", error.what());
      segments_[id] = {.bytes = 0, .is_unusable = true, .keep_until = std::numeric_limits<int64_t>::max()};
    }
  }
}

void FamilyLog::load_segment(uint32_t id) {
  SegmentContents contents;
  int64_t modified = 0;
  {
    const std::unique_ptr<File> file = options_.files.open(path(id), FileSystem::Mode::kRead);
    contents = scan_segment(*file, options_.family);
    struct stat status {};
    if (::fstat(file->descriptor(), &status) == 0) modified = status.st_mtime;
  }
  if (contents.file_bytes == 0 && !options_.is_read_only) {  // a process ended between making it and writing to it
    options_.files.remove(path(id));
    return;
  }
  segments_[id] = {.bytes = contents.file_bytes, .is_unusable = contents.is_foreign};
  for (const PlacedRecord& record : contents.records) {
    index_.insert(record.meta, {id, record.offset, record.meta.padded_bytes()}, record.meta.time);
  }
  const bool is_last = id + 1 == next_id_;
  if (!options_.is_read_only && is_last && contents.can_append() && contents.records_end < segment_bytes_max()) {
    writer_ = SegmentWriter::reopen(options_.files, options_.folder, options_.family, id, contents);
    segments_[id].bytes = writer_->bytes();
    return;
  }
  if (contents.is_foreign || !contents.damaged.empty()) segments_[id].keep_until = modified + options_.ttl.count();
  if (contents.is_foreign) {
    log_warning("KV store: {} is of another version: left as it is and not used", path(id).string());
  }
  for (const DamagedRange& range : contents.damaged) {
    damaged_bytes_ += range.end - range.begin;
    log_warning("KV store: {} is damaged from byte {} to {}; the rest of it is used", path(id).string(), range.begin,
                range.end);
  }
}

uint64_t FamilyLog::total_bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [id, segment] : segments_)
    sum += segment.bytes;
  return sum;
}

void FamilyLog::note_size() {
  const std::lock_guard lock(mutex_);
  Segment& segment = segments_[writer_->id()];
  appended_bytes_ += writer_->bytes() - segment.bytes;
  segment.bytes = writer_->bytes();
}

void FamilyLog::append(const RecordMeta& meta, std::span<const std::byte> bytes, int64_t now) {
  if (bytes.size() > options_.capacity_bytes / 4) {
    throw Error(ErrorCode::kResourceExhausted,
                fmt::format("a record of {} bytes does not fit into a store of {} bytes: raise --kv-disk or "
                            "--snapshot-disk",
                            bytes.size(), options_.capacity_bytes));
  }
  const bool has_room = writer_ && writer_->bytes() + writer_->list_bytes() + bytes.size() <= segment_bytes_max();
  if (!has_room) make_room(bytes.size(), now);
  append_anywhere(meta, bytes, nullptr, now);
}

void FamilyLog::append_anywhere(const RecordMeta& meta, std::span<const std::byte> bytes, const Place* moved_from,
                                int64_t now) {
  open_segment(bytes.size());
  uint64_t offset = 0;
  try {
    offset = writer_->append(meta, bytes);
    failures_ = 0;
  } catch (const Error&) {
    if (++failures_ >= kFailuresMax) retire_segment();
    throw;
  }
  note_size();
  const Place place{writer_->id(), offset, bytes.size()};
  const std::lock_guard lock(mutex_);
  const bool is_found =
      moved_from != nullptr ? index_.move(meta.key, *moved_from, place) : index_.insert(meta, place, now);
  if (is_found) unsynced_.push_back(meta.key);
  if (moved_from != nullptr) relocated_bytes_ += bytes.size();
}

void FamilyLog::open_segment(uint64_t record_bytes) {
  const bool is_full = writer_ && writer_->records() > 0 &&
                       writer_->bytes() + writer_->list_bytes() + record_bytes > segment_bytes_max();
  if (is_full) close_segment();
  if (writer_) return;
  // The next time another name is tried, should this one be taken by a file that is not ours.
  const uint32_t id = next_id_++;
  writer_ = SegmentWriter::create(options_.files, options_.folder, options_.family, id);
  failures_ = 0;
  note_size();
}

void FamilyLog::close_segment() {
  try {
    writer_->seal();
    note_size();
    unsynced_.clear();
    writer_.reset();
  } catch (const Error&) {
    retire_segment();  // without its list a segment is read by its headers
    throw;
  }
}

void FamilyLog::retire_segment() {
  try {
    writer_->sync();
    unsynced_.clear();
  } catch (const Error&) {
    forget_unsynced();
  }
  const uint32_t id = writer_->id();
  const bool is_empty = writer_->records() == 0;
  writer_.reset();
  failures_ = 0;
  if (is_empty) remove_segment(id);
}

void FamilyLog::forget_unsynced() {
  const std::lock_guard lock(mutex_);
  for (const BlockKey& key : unsynced_) {
    const IndexEntry* entry = index_.lookup(key);
    if (entry != nullptr && entry->place.segment == writer_->id()) index_.erase(key, Absence::kEvicted);
  }
  if (lost_.size() < kLostMax) lost_.insert(lost_.end(), unsynced_.begin(), unsynced_.end());
  unsynced_.clear();
}

void FamilyLog::sync() {
  if (!writer_ || unsynced_.empty()) return;
  try {
    writer_->sync();
    unsynced_.clear();
  } catch (const Error&) {
    // The system may have thrown the pages away, and would say "done" next time.
    forget_unsynced();
    writer_.reset();
    throw;
  }
}

void FamilyLog::evict(uint64_t bytes) {
  const uint64_t before = with_index([](const StoreIndex& index) { return index.live_bytes(); });
  const uint64_t wanted = before - std::min(before, bytes);
  const auto evict_some = [&](const std::vector<BlockKey>& keys) {
    for (const BlockKey& key : keys) {
      const std::lock_guard lock(mutex_);
      if (index_.live_bytes() <= wanted) return;
      index_.erase(key, Absence::kEvicted);
    }
  };
  if (options_.evict_first) evict_some(options_.evict_first());
  evict_some(least_recent(with_index([](const StoreIndex& index) { return index.ages(); }), bytes));
}

void FamilyLog::forget_expired(int64_t now) {
  for (const BlockKey& key : with_index([&](const StoreIndex& index) { return index.expired(now); })) {
    change_index([&](StoreIndex& index) { return index.erase(key, Absence::kExpired); });
  }
}

std::optional<FamilyLog::Candidate> FamilyLog::emptiest_segment(int64_t now) const {
  const std::lock_guard lock(mutex_);
  std::optional<Candidate> best;
  for (const auto& [id, segment] : segments_) {
    const uint64_t live = index_.live_bytes(id);
    if ((writer_ && writer_->id() == id) || (live == 0 && segment.keep_until > now)) continue;
    const double share = live == 0 ? 0 : static_cast<double>(live) / static_cast<double>(segment.bytes);
    if (!best || share < best->live_share) best = {id, share};
  }
  return best;
}

void FamilyLog::remove_segment(uint32_t id) {
  {
    const std::lock_guard lock(mutex_);
    if (segments_[id].keep_until != 0)
      log_warning("KV store: {} is old and mostly unusable: removed", path(id).string());
  }
  options_.files.remove(path(id));
  const std::lock_guard lock(mutex_);
  segments_.erase(id);
}

void FamilyLog::make_room(uint64_t bytes, int64_t now) {
  // A segment and the copies out of another one must fit beside what is there.
  const uint64_t reserve = 2 * segment_bytes_max();
  const auto capacity = static_cast<double>(options_.capacity_bytes);
  bool has_expired = true;
  while (total_bytes() + bytes + reserve > options_.capacity_bytes) {
    if (std::exchange(has_expired, false)) forget_expired(now);
    const auto live = static_cast<double>(with_index([](const StoreIndex& index) { return index.live_bytes(); }));
    if (live > kLiveShareMax * capacity) {
      evict(static_cast<uint64_t>(live - (kLiveShareMax - kEvictionShare) * capacity));
    }
    const std::optional<Candidate> emptiest = emptiest_segment(now);
    if (!emptiest) {
      if (!writer_ || writer_->records() == 0) {
        throw Error(ErrorCode::kResourceExhausted,
                    fmt::format("{}: files of other versions take the capacity of {} bytes: raise --kv-disk, or clear "
                                "the folder with tidepool cache clear",
                                options_.folder.string(), options_.capacity_bytes));
      }
      close_segment();
    } else if (emptiest->live_share == 0) {
      remove_segment(emptiest->id);
    } else if (emptiest->live_share > kWorthMoving) {
      evict(static_cast<uint64_t>(kEvictionShare * capacity));
    } else {
      relocate(emptiest->id, now);
    }
  }
}

bool FamilyLog::has_moved(const BlockKey& key, const Place& place) const {
  const std::lock_guard lock(mutex_);
  const IndexEntry* entry = index_.lookup(key);
  return entry == nullptr || entry->place != place;
}

void FamilyLog::relocate(uint32_t id, int64_t now) {
  std::vector<std::byte> bytes;
  try {
    const std::unique_ptr<File> file = options_.files.open(path(id), FileSystem::Mode::kRead);
    for (const PlacedRecord& record : scan_segment(*file, options_.family).records) {
      const Place place{id, record.offset, record.meta.padded_bytes()};
      if (has_moved(record.meta.key, place)) continue;
      bytes.resize(place.bytes);
      if (!try_read(*file, place.offset, bytes) || !decode_record(bytes)) {
        drop_damaged(record.meta.key, place);
        continue;
      }
      append_anywhere(record.meta, bytes, &place, now);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    drop_segment(id);  // somebody removed the file
    return;
  }
  sync();
  // Records that the index names although a damaged file does not any more.
  change_index([&](StoreIndex& index) { index.erase_segment(id, Absence::kChecksum); });
  remove_segment(id);
}

void FamilyLog::sweep(int64_t now) {
  forget_expired(now);
  for (auto emptiest = emptiest_segment(now); emptiest && emptiest->live_share <= kSweepShare;
       emptiest = emptiest_segment(now)) {
    if (emptiest->live_share == 0) {
      remove_segment(emptiest->id);
    } else {
      relocate(emptiest->id, now);
    }
  }
}

void FamilyLog::trim(int64_t now) {
  sweep(now);
  make_room(0, now);
}

void FamilyLog::drop_damaged(const BlockKey& key, const Place& place) {
  bad_records_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  const IndexEntry* entry = index_.lookup(key);
  if (entry != nullptr && entry->place == place) index_.erase(key, Absence::kChecksum);
}

void FamilyLog::note_failed_read(const BlockKey& key, const Place& place) {
  failed_reads_.fetch_add(1, std::memory_order_relaxed);
  change_index([&](StoreIndex& index) { index.mark_suspect(key, place); });
}

void FamilyLog::note_lost(const BlockKey& key) {
  const std::lock_guard lock(mutex_);
  if (lost_.size() < kLostMax) lost_.push_back(key);
}

std::vector<BlockKey> FamilyLog::take_lost() {
  const std::lock_guard lock(mutex_);
  return std::exchange(lost_, {});
}

void FamilyLog::drop_segment(uint32_t segment) {
  const std::lock_guard lock(mutex_);
  index_.erase_segment(segment, Absence::kEvicted);
  segments_.erase(segment);
}

FamilyStats FamilyLog::stats() const {
  const std::lock_guard lock(mutex_);
  FamilyStats stats;
  stats.records = index_.size();
  stats.segments = segments_.size();
  for (const auto& [id, segment] : segments_) {
    stats.file_bytes += segment.bytes;
    stats.unusable_segments += segment.is_unusable ? 1 : 0;
  }
  stats.live_bytes = index_.live_bytes();
  stats.damaged_bytes = damaged_bytes_;
  stats.appended_bytes = appended_bytes_;
  stats.relocated_bytes = relocated_bytes_;
  return stats;
}

}  // namespace tidepool::store
