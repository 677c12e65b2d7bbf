#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>

#include "base/file.h"

namespace tidepool {

/// What goes wrong. The defaults are: nothing.
struct FaultPlan {
  size_t read_bytes_max = std::numeric_limits<size_t>::max();   ///< short reads
  size_t write_bytes_max = std::numeric_limits<size_t>::max();  ///< short writes
  /// The disk is full after this many bytes, over all files: that write stores what still fits, the next fails.
  uint64_t disk_bytes = std::numeric_limits<uint64_t>::max();
  /// Reads that begin at or beyond this offset fail as a bad medium does.
  uint64_t bad_offset = std::numeric_limits<uint64_t>::max();
  bool sync_fails = false;
  bool rename_fails = false;
};

/// Files that fail as planned: for the tests of everything that stores bytes. `plan` may be changed between calls.
/// Thread-safe apart from changes of `plan`.
class FaultyFileSystem final : public FileSystem {
 public:
  explicit FaultyFileSystem(FaultPlan plan_in, FileSystem& under = real_file_system()) : plan(plan_in), under_(under) {}

  std::unique_ptr<File> open(const std::filesystem::path& path, Mode mode) override;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void remove(const std::filesystem::path& path) override;
  void sync_folder(const std::filesystem::path& folder) override;

  /// How many of `bytes` the disk still takes; they count as taken.
  [[nodiscard]] size_t take_disk(size_t bytes);

  FaultPlan plan;

 private:
  FileSystem& under_;
  std::atomic<uint64_t> written_bytes_{0};
};

}  // namespace tidepool
