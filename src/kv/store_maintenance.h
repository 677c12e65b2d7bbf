#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kv/disk_store.h"

/// What an operator does with a store's folder: `tidepool cache`. (docs/kv_store.md, "Commands")
namespace tidepool {

/// What a folder holds.
struct StoreSummary {
  int64_t blocks = 0;
  int64_t snapshots = 0;
  uint64_t block_bytes = 0;        ///< files of blocks
  uint64_t snapshot_bytes = 0;     ///< files of snapshots
  uint64_t disk_bytes = 0;         ///< everything that belongs to the store
  uint64_t reclaimable_bytes = 0;  ///< of files, that no record in use takes
  int64_t segments = 0;
  int64_t unusable_segments = 0;      ///< of another version, or not readable
  uint64_t damaged_bytes = 0;         ///< seen without reading the records' contents
  std::optional<int64_t> oldest_use;  ///< seconds since 1970
  std::optional<int64_t> newest_use;
  std::optional<std::string> owner;  ///< the process that has it open for writing
};
/// From the lists of the files, beside an owner too. Throws Error: kNotFound when there is no such folder, kIo.
[[nodiscard]] StoreSummary summarize_store(const std::filesystem::path& folder);

/// A part of a file that is not as it was written.
struct StoreDamage {
  std::filesystem::path file;
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string what;
};
struct StoreVerification {
  int64_t records = 0;  ///< whole ones
  uint64_t bytes = 0;   ///< read
  std::vector<StoreDamage> damages;
  std::vector<std::filesystem::path> foreign;  ///< files of other versions, not looked into
};
/// Reads every byte. Beside an owner, the end of the files it writes is left out. Throws as summarize_store().
[[nodiscard]] StoreVerification verify_store(const std::filesystem::path& folder);

/// Applies the limits of `options` now. Returns the bytes given back. Throws as open_disk_store(), and kNotFound.
[[nodiscard]] uint64_t trim_store(const DiskStoreOptions& options);

/// Removes all that the store wrote, files of other versions included, and returns their bytes. Throws Error:
/// kResourceExhausted when a process owns it, kNotFound, kIo.
[[nodiscard]] uint64_t clear_store(const std::filesystem::path& folder);

}  // namespace tidepool
