#include "kv/store_segment.h"

#include <gtest/gtest.h>

#include "base/temp_folder.h"
#include "kv/store_test_support.h"

namespace tidepool::store {
namespace {

class CountingFile final : public File {
 public:
  explicit CountingFile(std::unique_ptr<File> under) : under_(std::move(under)) {}
  [[nodiscard]] const std::filesystem::path& path() const override { return under_->path(); }
  [[nodiscard]] uint64_t size() const override { return under_->size(); }
  [[nodiscard]] int descriptor() const override { return under_->descriptor(); }
  [[nodiscard]] size_t read_some(uint64_t offset, std::span<std::byte> out) const override {
    bytes_read += out.size();
    return under_->read_some(offset, out);
  }
  [[nodiscard]] size_t write_some(uint64_t offset, std::span<const std::byte> bytes) override {
    return under_->write_some(offset, bytes);
  }
  void truncate(uint64_t size) override { under_->truncate(size); }
  void sync() override { under_->sync(); }

  mutable uint64_t bytes_read = 0;

 private:
  std::unique_ptr<File> under_;
};

/// Headers of snapshots in a file of blocks are searched through once.
TEST(StoreSegment, RecordsOfTheWrongKindAreReadOnce) {
  const TempFolder folder;
  FileSystem& files = real_file_system();
  SegmentWriter writer = SegmentWriter::create(files, folder.path(), Family::kBlocks, 1);
  const StoredSnapshot snapshot = test_snapshot(1, 0, 1, 10);
  const std::vector<std::byte> wrong = encode_record(
      {.meta = {.kind = RecordKind::kSnapshot, .index = 1, .key = snapshot.key, .parent = snapshot.parent},
       .tokens = {},
       .payload = snapshot.bytes},
      {});
  for (int i = 0; i < 2000; ++i)
    (void)writer.append(*decode_header(wrong), wrong);
  const StoredBlock block = test_block(1, 0, 1000);
  const std::vector<std::byte> right = encode_record(
      {.meta = {.key = block.key, .parent = block.parent}, .tokens = block.tokens, .payload = block.data->span()}, {});
  (void)writer.append(*decode_header(right), right);
  const CountingFile file(files.open(folder.path() / segment_name(Family::kBlocks, 1), FileSystem::Mode::kRead));
  const SegmentContents contents = scan_segment(file, Family::kBlocks);
  ASSERT_EQ(contents.records.size(), 1U);
  EXPECT_EQ(contents.records[0].meta.key, block.key);
  EXPECT_EQ(contents.damaged.size(), 1U);
  EXPECT_LT(file.bytes_read, 2 * contents.file_bytes);
}

}  // namespace
}  // namespace tidepool::store
