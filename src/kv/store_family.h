#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/folder_lock.h"
#include "kv/store_index.h"
#include "kv/store_segment.h"

namespace tidepool::store {

inline constexpr FolderPurpose kStorePurpose = {
    "this KV store", "take another folder (--kv-dir), or read beside its owner without writing (--kv-read-only)"};

struct FamilyOptions {
  FileSystem& files;
  std::filesystem::path folder;
  Family family = Family::kBlocks;
  uint64_t capacity_bytes = 0;
  std::chrono::seconds ttl{};
  bool is_read_only = false;
  /// Keys that go before the least recent ones; may be empty. Called without any lock held.
  std::function<std::vector<BlockKey>()> evict_first;
};

/// What lies in the files of one family.
struct FamilyStats {
  size_t records = 0;
  size_t segments = 0;
  size_t unusable_segments = 0;  ///< of another version, or not readable
  uint64_t file_bytes = 0;
  uint64_t live_bytes = 0;
  uint64_t damaged_bytes = 0;    ///< found when opening
  uint64_t appended_bytes = 0;   ///< to files since opening, of records and lists
  uint64_t relocated_bytes = 0;  ///< of them, moved so that space could be reclaimed
};

/// The segments of one family and their index. What only the writer calls is marked so; everything else is thread-safe.
class FamilyLog {
 public:
  explicit FamilyLog(FamilyOptions options);
  FamilyLog(const FamilyLog&) = delete;
  FamilyLog& operator=(const FamilyLog&) = delete;
  ~FamilyLog() = default;

  /// Writer, first: reads what the folder holds. Throws Error(kIo) only when the folder itself cannot be read.
  void load();

  /// Calls `look` with the index locked: briefly, without I/O.
  template <typename Look>
  auto with_index(Look look) const {
    const std::lock_guard lock(mutex_);
    return look(index_);
  }
  template <typename Change>
  auto change_index(Change change) {
    const std::lock_guard lock(mutex_);
    return change(index_);
  }

  /// Writer: appends a record and makes it found. Throws Error: kIo when the disk refuses, kResourceExhausted when the
  /// record cannot fit within the capacity.
  void append(const RecordMeta& meta, std::span<const std::byte> bytes, int64_t now);
  /// Writer: returns when what was appended is on the medium. When the disk refuses, what was not on it is forgotten,
  /// and Error(kIo) thrown.
  void sync();
  /// Writer: forgets what is expired and gives back space of segments that hold little else.
  void sweep(int64_t now);
  /// Writer: evicts and reclaims until the files take no more than the capacity. Throws Error(kIo).
  void trim(int64_t now);

  /// A record could not be read as it was written: it is absent from now on.
  void drop_damaged(const BlockKey& key, const Place& place);
  /// A record could not be read now: it stays, and a copy of it may be written.
  void note_failed_read(const BlockKey& key, const Place& place);
  /// Whether the record under `key` is not at `place` (any more).
  [[nodiscard]] bool has_moved(const BlockKey& key, const Place& place) const;
  /// A segment's file has gone.
  void drop_segment(uint32_t segment);

  [[nodiscard]] std::filesystem::path path(uint32_t segment) const {
    return options_.folder / segment_name(options_.family, segment);
  }
  [[nodiscard]] FamilyStats stats() const;
  [[nodiscard]] uint64_t bad_records() const { return bad_records_; }
  [[nodiscard]] uint64_t failed_reads() const { return failed_reads_; }
  /// Records that were taken and never got onto the medium. Each is named once.
  [[nodiscard]] std::vector<BlockKey> take_lost();
  void note_lost(const BlockKey& key);
  [[nodiscard]] const FamilyOptions& options() const { return options_; }

 private:
  struct Segment {
    uint64_t bytes = 0;
    bool is_unusable = false;  ///< foreign, or could not be read
    /// Damaged and foreign ones are not removed before this time, however little of them is used.
    int64_t keep_until = 0;
  };

  [[nodiscard]] uint64_t segment_bytes_max() const;
  [[nodiscard]] uint64_t total_bytes() const;
  void load_segment(uint32_t id);
  void open_segment(uint64_t record_bytes);
  void close_segment();
  /// Ends the open segment as it is.
  void retire_segment();
  /// What is in the open segment and perhaps not on the medium is not found any more.
  void forget_unsynced();
  /// Into the open segment or a new one, whatever the capacity. `moved_from` is null for a new record.
  void append_anywhere(const RecordMeta& meta, std::span<const std::byte> bytes, const Place* moved_from, int64_t now);
  void evict(uint64_t bytes);
  void forget_expired(int64_t now);
  void make_room(uint64_t bytes, int64_t now);
  struct Candidate {
    uint32_t id = 0;
    double live_share = 1;
  };
  /// The closed segment with the smallest share of live bytes.
  [[nodiscard]] std::optional<Candidate> emptiest_segment(int64_t now) const;
  void remove_segment(uint32_t id);
  void relocate(uint32_t id, int64_t now);
  void note_size();

  const FamilyOptions options_;
  mutable std::mutex mutex_;  ///< of index_, segments_, lost_ and the counts
  StoreIndex index_;
  std::map<uint32_t, Segment> segments_;
  uint64_t damaged_bytes_ = 0;
  uint64_t appended_bytes_ = 0;
  uint64_t relocated_bytes_ = 0;
  std::vector<BlockKey> lost_;
  std::atomic<uint64_t> bad_records_{0};   ///< relaxed: a count
  std::atomic<uint64_t> failed_reads_{0};  ///< relaxed: a count

  // Of the writer alone.
  uint32_t next_id_ = 1;
  std::optional<SegmentWriter> writer_;
  std::vector<BlockKey> unsynced_;
  int failures_ = 0;  ///< of the open segment, one after the other
};

}  // namespace tidepool::store
