#pragma once

#include <cstdint>
#include <filesystem>

namespace tidepool {

/// What this machine offers, in bytes. 0 where it does not say.
struct Machine {
  uint64_t memory_total = 0;
  uint64_t memory_available = 0;  ///< without driving others out; cached files count as available
  uint64_t disk_total = 0;        ///< of the file system that holds the model
  uint64_t disk_free = 0;         ///< of it, for this user
};

/// Where to look; tests look elsewhere.
struct MachinePaths {
  std::filesystem::path meminfo = "/proc/meminfo";
  std::filesystem::path cgroup = "/sys/fs/cgroup";
};

/// A container's limit counts when it is lower than the machine's memory.
[[nodiscard]] Machine look_at_machine(const std::filesystem::path& model_folder, const MachinePaths& paths = {});

}  // namespace tidepool
