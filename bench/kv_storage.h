#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "kv/disk_store.h"
#include "kv/kv_layout.h"

/// Folders, blocks and cold caches for the benchmarks of the KV store.
namespace tidepool::bench {

/// The released shapes: three sources of ratio 2, one of ratio 1, forty windows.
[[nodiscard]] std::shared_ptr<const KvLayout> released_layout();

/// Blocks as a model leaves them: normal values, each row of its own size, rounded to the grids of the layout.
[[nodiscard]] std::vector<std::shared_ptr<const KvBlock>> synthetic_blocks(const KvLayout& layout, size_t count);

/// Bytes of all files in a folder.
[[nodiscard]] uint64_t folder_bytes(const std::filesystem::path& folder);

/// Writes everything back and drops the folder's files from the page cache.
void make_cold(const std::filesystem::path& folder);

/// A file of `bytes` bytes and how long its device takes to read it from the first byte to the last: past the page
/// cache (O_DIRECT), a MiB at a time, one after the other.
class RawFile {
 public:
  /// Throws Error(kIo).
  RawFile(std::filesystem::path path, uint64_t bytes);
  [[nodiscard]] double read_seconds() const;

 private:
  std::filesystem::path path_;
  uint64_t bytes_;
};

/// Bytes that this process has had written to block devices.
[[nodiscard]] uint64_t device_written_bytes();

/// Resident memory of this process.
[[nodiscard]] uint64_t resident_bytes();

}  // namespace tidepool::bench
