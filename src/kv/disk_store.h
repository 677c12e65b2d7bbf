#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "base/file.h"
#include "kv/block_store.h"

namespace tidepool {

/// How a folder of blocks and snapshots is kept. (docs/kv_store.md)
struct DiskStoreOptions {
  std::filesystem::path folder;                          ///< --kv-dir; made (0700) when it is not there
  uint64_t capacity_bytes = uint64_t{64} << 30;          ///< --kv-disk: all files of blocks together
  uint64_t snapshot_capacity_bytes = uint64_t{2} << 30;  ///< --snapshot-disk: all files of snapshots
  std::chrono::seconds ttl = std::chrono::hours(72);     ///< --kv-ttl, from last use
  bool compresses = false;                               ///< --kv-compress: where it saves at least 2 %
  std::shared_ptr<const KvLayout> layout;      ///< of blocks, which compress better by their rows; may be null
  bool is_read_only = false;                   ///< --kv-read-only: beside a process that owns it
  uint64_t queue_bytes = uint64_t{256} << 20;  ///< waiting to be written; more is dropped
  size_t read_threads = 8;                     ///< of one read(): reads in flight
  std::function<int64_t()> now;                ///< seconds since 1970; for tests
  FileSystem* files = nullptr;                 ///< for tests; the real one otherwise
};

/// Least --kv-disk and --snapshot-disk.
inline constexpr uint64_t kStoreCapacityMin = uint64_t{8} << 20;

/// Throws Error(kInvalidArgument) for limits that cannot work.
void check_store_options(const DiskStoreOptions& options);

/// A store in append-only segment files, owned by one process at a time. What is damaged is absent; the rest of the
/// folder is used. Throws Error: kResourceExhausted when another process owns the folder (the message names it),
/// kInvalidArgument for limits that cannot work, kIo when the folder can be neither made nor read.
[[nodiscard]] std::unique_ptr<BlockStore> open_disk_store(const DiskStoreOptions& options);

/// $XDG_CACHE_HOME/tidepool/kv, or ~/.cache/tidepool/kv. Throws Error(kInvalidArgument) when neither variable is set.
[[nodiscard]] std::filesystem::path default_store_folder();

}  // namespace tidepool
