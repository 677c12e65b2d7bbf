#include "base/numa.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>

namespace tidepool {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' '))
    text.remove_suffix(1);
  return text;
}

std::optional<int> parse_cpu(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || value < 0 || value >= CPU_SETSIZE) return std::nullopt;
  return value;
}

}  // namespace

std::optional<CpuList> parse_cpu_list(std::string_view text) {
  CpuList cpus;
  text = trimmed(text);
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    const size_t dash = part.find('-');
    const std::optional<int> first = parse_cpu(part.substr(0, dash));
    const std::optional<int> last = dash == std::string_view::npos ? first : parse_cpu(part.substr(dash + 1));
    if (!first || !last || *first > *last) return std::nullopt;
    for (int cpu = *first; cpu <= *last; ++cpu)
      cpus.push_back(cpu);
  }
  std::ranges::sort(cpus);
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::vector<CpuList> memory_nodes(const std::filesystem::path& folder, const cpu_set_t& allowed) {
  // Numbers may have gaps; machines with more nodes are run as if they had these.
  constexpr int kNodesMax = 64;
  std::vector<CpuList> nodes;
  for (int node = 0; node < kNodesMax; ++node) {
    std::ifstream file(folder / ("node" + std::to_string(node)) / "cpulist");
    if (!file) continue;
    std::string text;
    std::getline(file, text);
    CpuList cpus = parse_cpu_list(text).value_or(CpuList{});
    std::erase_if(cpus, [&](int cpu) { return !CPU_ISSET(cpu, &allowed); });
    if (!cpus.empty()) nodes.push_back(std::move(cpus));
  }
  return nodes;
}

std::vector<CpuList> memory_nodes() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return {};
  return memory_nodes("/sys/devices/system/node", allowed);
}

void keep_on(const CpuList& cpus) {
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int cpu : cpus)
    CPU_SET(cpu, &wanted);
  (void)sched_setaffinity(0, sizeof(wanted), &wanted);
}

}  // namespace tidepool
