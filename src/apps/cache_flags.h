#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/cli_app.h"
#include "kv/kv_cache.h"
#include "session/loaded_model.h"

namespace tidepool {

/// Options of every command that keeps the KV of contexts. Sizes in bytes, times in seconds.
struct CacheFlags {
  std::optional<uint64_t> kv_ram;
  uint64_t snapshot_ram = uint64_t{256} << 20;
  uint64_t snapshot_ttl = 600;
  std::optional<std::string> kv_dir;
  uint64_t kv_disk = uint64_t{64} << 30;
  uint64_t snapshot_disk = uint64_t{2} << 30;
  uint64_t kv_ttl = uint64_t{72} * 3600;
  bool compresses = false;
  bool is_read_only = false;
};

void add_cache_flags(CLI::App& command, CacheFlags& flags);

/// The flags as the cache takes them, with the folder opened if there is one. Throws Error as open_disk_store().
[[nodiscard]] KvCacheOptions cache_options(const CacheFlags& flags, const LoadedModel& model);

/// The cache, with its folder opened if there is one. Throws Error as open_disk_store().
[[nodiscard]] std::unique_ptr<KvCache> open_cache(const CacheFlags& flags, const LoadedModel& model);

}  // namespace tidepool
