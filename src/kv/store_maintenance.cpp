#include "kv/store_maintenance.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <system_error>

#include "base/error.h"
#include "base/folder_lock.h"
#include "kv/store_family.h"
#include "kv/store_load.h"
#include "kv/store_segment.h"

namespace tidepool {
namespace {

namespace fs = std::filesystem;
using store::Family;
using store::FamilyLog;
using store::StoreIndex;

void require_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw Error(ErrorCode::kNotFound, fmt::format("{}: there is no KV store", folder.string()));
  }
}

int64_t wall_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// All files of the store but its lock.
std::vector<fs::path> store_files(const fs::path& folder) {
  std::vector<fs::path> result;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    // "uses.log" and what a killed process left of a new one.
    if (store::parse_segment_name(name) || name.starts_with(store::kUsesName)) result.push_back(entry.path());
  }
  if (error) throw Error(ErrorCode::kIo, fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
  std::ranges::sort(result);
  return result;
}

uint64_t bytes_of(const std::vector<fs::path>& files) {
  uint64_t sum = 0;
  for (const fs::path& file : files) {
    std::error_code error;  // one that an owner has just removed has none
    const uint64_t bytes = fs::file_size(file, error);
    if (!error) sum += bytes;
  }
  return sum;
}

/// Reads one segment to the last byte.
class SegmentVerifier {
 public:
  SegmentVerifier(fs::path path, Family family, bool may_grow, StoreVerification& result)
      : path_(std::move(path)), family_(family), may_grow_(may_grow), result_(result) {}

  void verify() {
    const std::unique_ptr<File> file = real_file_system().open(path_, FileSystem::Mode::kRead);
    store::SegmentContents contents = scan_segment(*file, family_);
    result_.bytes += contents.file_bytes;
    if (contents.is_foreign) {
      result_.foreign.push_back(path_);
      return;
    }
    for (const store::DamagedRange& range : contents.damaged) {
      const bool is_being_written = may_grow_ && range.end == contents.file_bytes;
      if (!is_being_written) damage(range.begin, range.end, "no record can be read here");
    }
    std::ranges::sort(contents.records, {}, &store::PlacedRecord::offset);
    uint64_t at = store::kSegmentHeaderBytes;
    for (const store::PlacedRecord& record : contents.records) {
      if (contents.is_sealed && record.offset > at) damage(at, record.offset, "bytes that belong to no record");
      verify_record(*file, record);
      at = record.offset + record.meta.padded_bytes();
    }
  }

 private:
  void damage(uint64_t begin, uint64_t end, std::string what) {
    result_.damages.push_back({path_, begin, end, std::move(what)});
  }

  void verify_record(const File& file, const store::PlacedRecord& record) {
    const uint64_t end = record.offset + record.meta.padded_bytes();
    bytes_.resize(record.meta.padded_bytes());
    try {
      file.read_exactly(record.offset, bytes_);
    } catch (const Error& error) {
      damage(record.offset, end, error.what());
      return;
    }
    const std::optional<store::RecordView> whole = store::decode_record(bytes_);
    const auto padding = std::span(bytes_).subspan(record.meta.bytes());
    if (!whole || whole->meta != record.meta) {
      damage(record.offset, end, "the record's checksum does not fit");
    } else if (std::ranges::any_of(padding, [](std::byte byte) { return byte != std::byte{0}; })) {
      damage(record.offset + record.meta.bytes(), end, "padding that is not zero");
    } else {
      ++result_.records;
    }
  }

  fs::path path_;
  Family family_;
  bool may_grow_;
  StoreVerification& result_;
  std::vector<std::byte> bytes_;
};

store::FamilyOptions family_options(const DiskStoreOptions& options, Family family) {
  return {.files = real_file_system(),
          .folder = options.folder,
          .family = family,
          .capacity_bytes = family == Family::kBlocks ? options.capacity_bytes : options.snapshot_capacity_bytes,
          .ttl = options.ttl,
          .is_read_only = options.is_read_only,
          .evict_first = {}};
}

}  // namespace

StoreSummary summarize_store(const fs::path& folder) {
  require_folder(folder);
  DiskStoreOptions options;
  options.folder = folder;
  options.is_read_only = true;
  options.ttl = std::chrono::seconds(std::numeric_limits<int64_t>::max() / 4);  // what the owner takes for its limit
  FamilyLog blocks(family_options(options, Family::kBlocks));
  FamilyLog snapshots(family_options(options, Family::kSnapshots));
  const int64_t now = wall_seconds();
  static_cast<void>(store::load_families(real_file_system(), folder, blocks, snapshots, now));
  StoreSummary summary;
  summary.owner = folder_owner(folder);
  summary.disk_bytes = bytes_of(store_files(folder));
  for (const FamilyLog* family : {&blocks, &snapshots}) {
    const store::FamilyStats stats = family->stats();
    const bool is_blocks = family == &blocks;
    (is_blocks ? summary.blocks : summary.snapshots) = static_cast<int64_t>(stats.records);
    (is_blocks ? summary.block_bytes : summary.snapshot_bytes) = stats.file_bytes;
    summary.reclaimable_bytes += stats.file_bytes - std::min(stats.file_bytes, stats.live_bytes);
    summary.segments += static_cast<int64_t>(stats.segments);
    summary.unusable_segments += static_cast<int64_t>(stats.unusable_segments);
    summary.damaged_bytes += stats.damaged_bytes;
    for (const StoreIndex::Age& age : family->with_index([](const StoreIndex& index) { return index.ages(); })) {
      summary.oldest_use = std::min(summary.oldest_use.value_or(age.last_use), age.last_use);
      summary.newest_use = std::max(summary.newest_use.value_or(age.last_use), age.last_use);
    }
  }
  return summary;
}

StoreVerification verify_store(const fs::path& folder) {
  require_folder(folder);
  const bool is_owned = folder_owner(folder).has_value();
  StoreVerification result;
  for (const fs::path& path : store_files(folder)) {
    const auto parsed = store::parse_segment_name(path.filename().string());
    if (!parsed) continue;
    try {
      SegmentVerifier(path, parsed->first, is_owned, result).verify();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kNotFound && is_owned) continue;  // reclaimed meanwhile
      result.damages.push_back({path, 0, 0, error.what()});
    }
  }
  try {
    const store::UsesRead uses = store::read_uses(real_file_system(), folder);
    result.bytes += (uses.uses.size() + uses.damaged) * store::kUseBytes;
    if (uses.damaged > (is_owned ? 1 : 0)) {
      result.damages.push_back(
          {folder / store::kUsesName, 0, 0, fmt::format("{} records of last use cannot be read", uses.damaged)});
    }
  } catch (const Error& error) {
    result.damages.push_back({folder / store::kUsesName, 0, 0, error.what()});
  }
  return result;
}

uint64_t trim_store(const DiskStoreOptions& options) {
  require_folder(options.folder);
  check_store_options(options);
  const FolderLock lock(options.folder, store::kStorePurpose);
  const uint64_t before = bytes_of(store_files(options.folder));
  FamilyLog blocks(family_options(options, Family::kBlocks));
  store::FamilyOptions snapshot_options = family_options(options, Family::kSnapshots);
  const FamilyLog* all_snapshots = nullptr;
  snapshot_options.evict_first = [&] { return store::superseded_snapshots(blocks, *all_snapshots); };
  FamilyLog snapshots(std::move(snapshot_options));
  all_snapshots = &snapshots;
  const int64_t now = options.now ? options.now() : wall_seconds();
  static_cast<void>(store::load_families(real_file_system(), options.folder, blocks, snapshots, now));
  snapshots.trim(now);
  blocks.trim(now);
  const uint64_t after = bytes_of(store_files(options.folder));
  return before - std::min(before, after);
}

uint64_t clear_store(const fs::path& folder) {
  require_folder(folder);
  const FolderLock lock(folder, store::kStorePurpose);
  const std::vector<fs::path> files = store_files(folder);
  const uint64_t bytes = bytes_of(files);
  for (const fs::path& file : files)
    real_file_system().remove(file);
  real_file_system().sync_folder(folder);
  return bytes;
}

}  // namespace tidepool
