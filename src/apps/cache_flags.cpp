#include "apps/cache_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <utility>

#include "apps/machine.h"
#include "apps/size_flags.h"
#include "kv/disk_store.h"
#include "model/fingerprint.h"

namespace tidepool {
namespace {

/// A quarter of the memory, and never less than a context of a million tokens takes.
uint64_t default_kv_ram(const LoadedModel& model) {
  const uint64_t quarter = look_at_machine(model.checkpoint().folder()).memory_total / 4;
  const KvLayout& layout = *model.model().kv_layout();
  const auto longest = static_cast<uint64_t>(model.config().max_position_embeddings / kBlockTokens + 1);
  return std::max(quarter, longest * layout.block_bytes);
}

}  // namespace

void add_cache_flags(CLI::App& command, CacheFlags& flags) {
  const char* group = "KV cache";
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group(group);
  };
  add("--kv-ram", flags.kv_ram,
      "memory for the KV of live and recent contexts, as 8GiB; default: a quarter of this machine's")
      ->transform(size_value());
  add("--snapshot-ram", flags.snapshot_ram, "memory for whole states of recent sequences, as 256MiB")
      ->transform(size_value())
      ->default_str("256MiB");
  add("--snapshot-ttl", flags.snapshot_ttl, "how long these are kept, as 10m")
      ->transform(seconds_value())
      ->default_str("10m");
  CLI::Option* folder =
      add("--kv-dir", flags.kv_dir, "folder that keeps KV beyond the end of the program; none: nothing is kept");
  add("--kv-disk", flags.kv_disk, "size of that folder's blocks, as 64GiB")
      ->transform(size_value())
      ->default_str("64GiB")
      ->needs(folder);
  add("--snapshot-disk", flags.snapshot_disk, "size of that folder's snapshots, as 2GiB")
      ->transform(size_value())
      ->default_str("2GiB")
      ->needs(folder);
  add("--kv-ttl", flags.kv_ttl, "how long what is not used stays in the folder, as 72h")
      ->transform(seconds_value())
      ->default_str("72h")
      ->needs(folder);
  command.add_flag("--kv-compress", flags.compresses, "compress the folder's blocks where that saves space")
      ->group(group)
      ->needs(folder);
  command.add_flag("--kv-read-only", flags.is_read_only, "use the folder beside a program that owns it")
      ->group(group)
      ->needs(folder);
}

KvCacheOptions cache_options(const CacheFlags& flags, const LoadedModel& model) {
  KvCacheOptions options;
  options.model = model_fingerprint(model.model());
  options.ram_bytes = flags.kv_ram.value_or(default_kv_ram(model));
  options.snapshot_ram_bytes = flags.snapshot_ram;
  options.snapshot_ttl = std::chrono::seconds(flags.snapshot_ttl);
  if (flags.kv_dir) {
    DiskStoreOptions store;
    store.folder = *flags.kv_dir;
    store.capacity_bytes = flags.kv_disk;
    store.snapshot_capacity_bytes = flags.snapshot_disk;
    store.ttl = std::chrono::seconds(flags.kv_ttl);
    store.compresses = flags.compresses;
    store.layout = model.model().kv_layout();
    store.is_read_only = flags.is_read_only;
    options.store = open_disk_store(store);
  }
  return options;
}

std::unique_ptr<KvCache> open_cache(const CacheFlags& flags, const LoadedModel& model) {
  return std::make_unique<KvCache>(model.model().kv_layout(), cache_options(flags, model));
}

}  // namespace tidepool
