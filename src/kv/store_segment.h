#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "kv/store_record.h"

/// Segment files of the disk store: records one after the other, and a list of them when full. (docs/kv_store.md)
namespace tidepool::store {

inline constexpr uint32_t kSegmentVersion = 1;
inline constexpr uint64_t kSegmentHeaderBytes = 64;

/// Which files a record goes to: each family has its own limit.
enum class Family : uint8_t { kBlocks = 1, kSnapshots = 2 };

/// "blocks-0000002a.seg".
[[nodiscard]] std::string segment_name(Family family, uint32_t id);
/// What a file of that name is, or nothing.
[[nodiscard]] std::optional<std::pair<Family, uint32_t>> parse_segment_name(const std::string& name);

struct PlacedRecord {
  RecordMeta meta;
  uint64_t offset = 0;  ///< in its segment
};

/// Bytes of a segment that hold no record.
struct DamagedRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// What a segment holds, from its list or its headers; payloads are not read.
struct SegmentContents {
  std::vector<PlacedRecord> records;
  std::vector<DamagedRange> damaged;
  uint64_t file_bytes = 0;
  uint64_t records_end = 0;  ///< behind the last record
  bool is_foreign = false;   ///< of a version that this program does not know: nothing of it is used
  bool is_sealed = false;    ///< has its list
  bool has_header = false;   ///< the file's own header is whole

  /// Nothing is damaged but perhaps the end, which a killed process left: may be cut there and appended to.
  [[nodiscard]] bool can_append() const;
};

/// Reads what a segment holds. Throws Error(kIo) when it cannot be read at all.
[[nodiscard]] SegmentContents scan_segment(const File& file, Family family);

/// The end of one segment. One thread at a time. Failures throw Error(kIo) and leave what was appended before.
class SegmentWriter {
 public:
  /// A new segment, readable by its owner only.
  [[nodiscard]] static SegmentWriter create(FileSystem& files, const std::filesystem::path& folder, Family family,
                                            uint32_t id);
  /// Goes on behind the last record; contents.can_append().
  [[nodiscard]] static SegmentWriter reopen(FileSystem& files, const std::filesystem::path& folder, Family family,
                                            uint32_t id, const SegmentContents& contents);

  [[nodiscard]] uint32_t id() const { return id_; }
  [[nodiscard]] uint64_t bytes() const { return end_; }
  /// What the list would add.
  [[nodiscard]] uint64_t list_bytes() const;
  [[nodiscard]] size_t records() const { return records_.size(); }

  /// Appends an encoded record and returns its offset.
  uint64_t append(const RecordMeta& meta, std::span<const std::byte> bytes);
  /// Returns when all records are on the medium.
  void sync();
  /// Writes the list and syncs; nothing is appended afterwards.
  void seal();

 private:
  SegmentWriter(std::unique_ptr<File> file, uint32_t id, uint64_t end) : file_(std::move(file)), id_(id), end_(end) {}
  void write_or_take_back(std::span<const std::byte> bytes);

  std::unique_ptr<File> file_;
  uint32_t id_ = 0;
  uint64_t end_ = 0;
  std::vector<PlacedRecord> records_;
};

}  // namespace tidepool::store
