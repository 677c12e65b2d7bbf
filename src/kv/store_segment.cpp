#include "kv/store_segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "base/error.h"
#include "kv/store_bytes.h"

namespace tidepool::store {
namespace {

constexpr std::array kFileMagic = {'T', 'I', 'D', 'E', 'K', 'V', 'S', '\0'};
constexpr std::array kListMagic = {'T', 'I', 'D', 'E', 'K', 'V', 'L', '\0'};
/// Entries of a list begin otherwise than records, or a search for records behind damage would find them.
constexpr uint32_t kEntryMagic = 0x4b56454c;
constexpr uint64_t kTrailerBytes = 64;
constexpr uint64_t kEntryBytes = kHeaderBytes;
constexpr size_t kEntryOffsetAt = 128;

using FileHeader = std::array<std::byte, kSegmentHeaderBytes>;
using Trailer = std::array<std::byte, kTrailerBytes>;

/// Layout of a file's header: magic [8], version [4], family [1], zeros, checksum of the first 48 bytes [16].
constexpr size_t kFileChecksumAt = 48;
/// Layout of the trailer: magic [8], version [4], count [4], place of the list [8], zeros, checksum [16] of the list
/// and the first 48 bytes.
constexpr size_t kTrailerChecksumAt = 48;

FileHeader make_file_header(Family family) {
  FileHeader header{};
  put(header.data(), kFileMagic);
  put(header.data() + 8, kSegmentVersion);
  put(header.data() + 12, family);
  put(header.data() + kFileChecksumAt, checksum_of(std::span(header).first(kFileChecksumAt)));
  return header;
}

enum class HeaderState { kWhole, kForeign, kDamaged };

HeaderState check_file_header(const FileHeader& header, Family family) {
  if (get<Checksum>(header.data() + kFileChecksumAt) != checksum_of(std::span(header).first(kFileChecksumAt)) ||
      get<std::array<char, 8>>(header.data()) != kFileMagic) {
    return HeaderState::kDamaged;
  }
  if (get<uint32_t>(header.data() + 8) != kSegmentVersion) return HeaderState::kForeign;
  return get<Family>(header.data() + 12) == family ? HeaderState::kWhole : HeaderState::kDamaged;
}

std::vector<std::byte> make_list(const std::vector<PlacedRecord>& records, uint64_t at) {
  std::vector<std::byte> bytes(records.size() * kEntryBytes + kTrailerBytes);
  std::byte* entry = bytes.data();
  for (const PlacedRecord& record : records) {
    put(entry, encode_header(record.meta));
    put(entry, kEntryMagic);
    put(entry + kEntryOffsetAt, record.offset);
    entry += kEntryBytes;
  }
  put(entry, kListMagic);
  put(entry + 8, kSegmentVersion);
  put(entry + 12, static_cast<uint32_t>(records.size()));
  put(entry + 16, at);
  put(entry + kTrailerChecksumAt,
      checksum_of(std::span(bytes).first(bytes.size() - (kTrailerBytes - kTrailerChecksumAt))));
  return bytes;
}

/// Fills `contents` from the list at the end of the file. False when there is none, or a damaged one.
bool read_list(const File& file, Family family, SegmentContents& contents) {
  if (contents.file_bytes < kSegmentHeaderBytes + kTrailerBytes) return false;
  Trailer trailer{};
  file.read_exactly(contents.file_bytes - kTrailerBytes, trailer);
  if (get<std::array<char, 8>>(trailer.data()) != kListMagic) return false;
  const uint64_t count = get<uint32_t>(trailer.data() + 12);
  const auto at = get<uint64_t>(trailer.data() + 16);
  if (at < kSegmentHeaderBytes || at > contents.file_bytes ||
      contents.file_bytes - at != count * kEntryBytes + kTrailerBytes) {
    return false;
  }
  std::vector<std::byte> bytes(contents.file_bytes - at);
  file.read_exactly(at, bytes);
  const size_t checked = bytes.size() - (kTrailerBytes - kTrailerChecksumAt);
  if (get<Checksum>(bytes.data() + checked) != checksum_of(std::span(bytes).first(checked))) return false;
  const RecordKind kind = family == Family::kBlocks ? RecordKind::kBlock : RecordKind::kSnapshot;
  for (uint64_t i = 0; i < count; ++i) {
    std::byte* entry = bytes.data() + i * kEntryBytes;
    put(entry, kRecordMagic);
    const std::optional<RecordMeta> meta = decode_header(std::span(bytes).subspan(i * kEntryBytes, kEntryBytes));
    const auto offset = get<uint64_t>(entry + kEntryOffsetAt);
    if (!meta || meta->kind != kind || offset < kSegmentHeaderBytes || offset % kRecordAlignment != 0 || offset > at ||
        meta->padded_bytes() > at - offset) {
      contents.records.clear();
      return false;
    }
    contents.records.push_back({*meta, offset});
    contents.records_end = std::max(contents.records_end, offset + meta->padded_bytes());
  }
  contents.is_sealed = true;
  return true;
}

/// The first place in `range` where a record of this kind may begin, or its
/// end, which is that of the file.
uint64_t find_record(const File& file, RecordKind kind, DamagedRange range) {
  const auto [from, end] = range;
  constexpr uint64_t kStep = uint64_t{1} << 20;
  std::vector<std::byte> bytes;
  for (uint64_t at = from; at < end; at += kStep) {
    bytes.resize(std::min(kStep + kHeaderBytes, end - at));
    file.read_exactly(at, bytes);
    for (uint64_t i = 0; i < kStep && i + kHeaderBytes <= bytes.size(); i += kRecordAlignment) {
      const std::optional<RecordMeta> meta = decode_header(std::span(bytes).subspan(i, kHeaderBytes));
      if (meta && meta->kind == kind && meta->padded_bytes() <= end - at - i) return at + i;
    }
  }
  return end;
}

/// Fills `contents` from the headers of the records, and searches on behind damage.
void read_headers(const File& file, Family family, SegmentContents& contents) {
  const RecordKind kind = family == Family::kBlocks ? RecordKind::kBlock : RecordKind::kSnapshot;
  const uint64_t end = contents.file_bytes;
  std::array<std::byte, kHeaderBytes> header{};
  uint64_t at = kSegmentHeaderBytes;
  while (at < end) {
    std::optional<RecordMeta> meta;
    if (end - at >= kHeaderBytes) {
      file.read_exactly(at, header);
      meta = decode_header(header);
    }
    if (meta && meta->kind == kind && meta->padded_bytes() <= end - at) {
      contents.records.push_back({*meta, at});
      at += meta->padded_bytes();
      contents.records_end = at;
      continue;
    }
    const uint64_t next = find_record(file, kind, {std::min(at + kRecordAlignment, end), end});
    contents.damaged.push_back({at, next});
    at = next;
  }
}

}  // namespace

std::string segment_name(Family family, uint32_t id) {
  return fmt::format("{}-{:08x}.seg", family == Family::kBlocks ? "blocks" : "snapshots", id);
}

std::optional<std::pair<Family, uint32_t>> parse_segment_name(const std::string& name) {
  for (const Family family : {Family::kBlocks, Family::kSnapshots}) {
    const std::string_view prefix = family == Family::kBlocks ? "blocks-" : "snapshots-";
    uint32_t id = 0;
    if (!name.starts_with(prefix)) continue;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), id, 16);
    if (name == segment_name(family, id)) return std::pair{family, id};
  }
  return std::nullopt;
}

bool SegmentContents::can_append() const {
  const bool is_clean = damaged.empty() || (damaged.size() == 1 && damaged.front().end == file_bytes);
  return has_header && !is_sealed && !is_foreign && is_clean;
}

SegmentContents scan_segment(const File& file, Family family) {
  SegmentContents contents;
  contents.file_bytes = file.size();
  contents.records_end = kSegmentHeaderBytes;
  if (contents.file_bytes < kSegmentHeaderBytes) return contents;
  FileHeader header{};
  file.read_exactly(0, header);
  const HeaderState state = check_file_header(header, family);
  contents.has_header = state == HeaderState::kWhole;
  contents.is_foreign = state == HeaderState::kForeign;
  if (contents.is_foreign) return contents;
  if (!contents.has_header) contents.damaged.push_back({0, kSegmentHeaderBytes});
  if (!read_list(file, family, contents)) read_headers(file, family, contents);
  return contents;
}

SegmentWriter SegmentWriter::create(FileSystem& files, const std::filesystem::path& folder, Family family,
                                    uint32_t id) {
  const std::filesystem::path path = folder / segment_name(family, id);
  SegmentWriter writer(files.open(path, FileSystem::Mode::kCreate), id, 0);
  // Through the descriptor: the mask of the process is not ours to change.
  if (::fchmod(writer.file_->descriptor(), 0600) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("{}: cannot be made private", path.string()));
  }
  try {
    writer.write_or_take_back(make_file_header(family));
    files.sync_folder(folder);
  } catch (const Error&) {
    files.remove(path);
    throw;
  }
  return writer;
}

SegmentWriter SegmentWriter::reopen(FileSystem& files, const std::filesystem::path& folder, Family family, uint32_t id,
                                    const SegmentContents& contents) {
  SegmentWriter writer(files.open(folder / segment_name(family, id), FileSystem::Mode::kReadWrite), id,
                       contents.records_end);
  if (contents.file_bytes > contents.records_end) writer.file_->truncate(contents.records_end);
  writer.records_ = contents.records;
  return writer;
}

uint64_t SegmentWriter::list_bytes() const {
  return records_.size() * kEntryBytes + kTrailerBytes;
}

void SegmentWriter::write_or_take_back(std::span<const std::byte> bytes) {
  try {
    file_->write_all(end_, bytes);
  } catch (const Error&) {
    file_->truncate(end_);  // when this fails too, the reader of the file takes the rest for a torn end
    throw;
  }
  end_ += bytes.size();
}

uint64_t SegmentWriter::append(const RecordMeta& meta, std::span<const std::byte> bytes) {
  const uint64_t offset = end_;
  write_or_take_back(bytes);
  records_.push_back({meta, offset});
  return offset;
}

void SegmentWriter::sync() {
  file_->sync();
  // What was written is read again in days if at all: the memory is worth more to the weights.
  ::posix_fadvise(file_->descriptor(), 0, 0, POSIX_FADV_DONTNEED);
}

void SegmentWriter::seal() {
  write_or_take_back(make_list(records_, end_));
  sync();
}

}  // namespace tidepool::store
