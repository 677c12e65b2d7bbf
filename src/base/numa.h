#pragma once

#include <sched.h>

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace tidepool {

/// Numbers of processors, ascending.
using CpuList = std::vector<int>;

/// "0-3,8,10-11" as Linux writes lists of processors; nothing if it is not such a list or names one beyond the 1024
/// that an affinity mask holds.
[[nodiscard]] std::optional<CpuList> parse_cpu_list(std::string_view text);

/// The processors of each memory node below `folder` that `allowed` has, nodes without any left out. Empty where the
/// folder does not say: a machine without NUMA, or a container that hides it.
[[nodiscard]] std::vector<CpuList> memory_nodes(const std::filesystem::path& folder, const cpu_set_t& allowed);

/// The same of this machine and process.
[[nodiscard]] std::vector<CpuList> memory_nodes();

/// Which of `nodes` nodes worker `worker` of `workers` belongs to: neighbours share one, and each gets an equal part.
[[nodiscard]] constexpr size_t node_of_worker(size_t worker, size_t workers, size_t nodes) {
  return worker * nodes / workers;
}

/// Keeps the calling thread on these processors, so that memory it touches first is near it. Where the system refuses
/// the thread stays where it was: slower, never wrong.
void keep_on(const CpuList& cpus);

}  // namespace tidepool
