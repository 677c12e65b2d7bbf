// Input: a segment file, damaged in any way. Whatever it holds, every record named lies within the file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "base/check.h"
#include "base/error.h"
#include "kv/store_segment.h"

namespace {

/// A file that lies in memory.
class MemoryFile final : public tidepool::File {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  [[nodiscard]] const std::filesystem::path& path() const override { return path_; }
  [[nodiscard]] uint64_t size() const override { return bytes_.size(); }
  [[nodiscard]] size_t read_some(uint64_t offset, std::span<std::byte> out) const override {
    if (offset >= bytes_.size()) return 0;
    const std::span<const std::byte> from =
        bytes_.subspan(offset, std::min<uint64_t>(out.size(), bytes_.size() - offset));
    std::ranges::copy(from, out.begin());
    return from.size();
  }
  [[nodiscard]] size_t write_some(uint64_t, std::span<const std::byte>) override { refuse(); }
  void truncate(uint64_t) override { refuse(); }
  void sync() override {}
  [[nodiscard]] int descriptor() const override { return -1; }

 private:
  [[noreturn]] static void refuse() { throw tidepool::Error(tidepool::ErrorCode::kIo, "memory: not for writing"); }
  std::span<const std::byte> bytes_;
  std::filesystem::path path_ = "memory";
};

}  // namespace

using tidepool::store::DamagedRange;
using tidepool::store::Family;
using tidepool::store::kRecordAlignment;
using tidepool::store::PlacedRecord;
using tidepool::store::scan_segment;
using tidepool::store::SegmentContents;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemoryFile file(std::as_bytes(std::span(data, size)));
  for (const Family family : {Family::kBlocks, Family::kSnapshots}) {
    const SegmentContents contents = scan_segment(file, family);
    TIDEPOOL_CHECK(contents.file_bytes == size, "another size");
    for (const PlacedRecord& record : contents.records) {
      TIDEPOOL_CHECK(record.offset % kRecordAlignment == 0 && record.offset <= size, "a record outside the file");
      TIDEPOOL_CHECK(record.meta.padded_bytes() <= size - record.offset, "a record past the end");
    }
    for (const DamagedRange& range : contents.damaged)
      TIDEPOOL_CHECK(range.begin < range.end && range.end <= size, "damage outside the file");
  }
  return 0;
}
