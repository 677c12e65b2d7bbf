#include "apps/machine.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace tidepool {
namespace {

/// The number in a file that holds one, if it does ("max" stands for no limit).
std::optional<uint64_t> read_number(const std::filesystem::path& file) {
  std::ifstream stream(file);
  uint64_t number = 0;
  if (stream >> number) return number;
  return std::nullopt;
}

void read_meminfo(const std::filesystem::path& file, Machine& machine) {
  constexpr uint64_t kKibibyte = 1024;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string key;
    uint64_t value = 0;
    if (!(words >> key >> value)) continue;
    if (key == "MemTotal:") machine.memory_total = value * kKibibyte;
    if (key == "MemAvailable:") machine.memory_available = value * kKibibyte;
  }
}

void apply_container_limit(const std::filesystem::path& cgroup, Machine& machine) {
  const std::optional<uint64_t> limit = read_number(cgroup / "memory.max");
  if (!limit || *limit >= machine.memory_total) return;
  machine.memory_total = *limit;
  const uint64_t used = std::min(*limit, read_number(cgroup / "memory.current").value_or(0));
  machine.memory_available = std::min(machine.memory_available, *limit - used);
}

}  // namespace

Machine look_at_machine(const std::filesystem::path& model_folder, const MachinePaths& paths) {
  Machine machine;
  read_meminfo(paths.meminfo, machine);
  apply_container_limit(paths.cgroup, machine);
  std::error_code ignored;  // the disk is extra information; without it the plan has a gap and no more
  const std::filesystem::space_info space = std::filesystem::space(model_folder, ignored);
  if (!ignored) {
    machine.disk_total = space.capacity;
    machine.disk_free = space.available;
  }
  return machine;
}

}  // namespace tidepool
