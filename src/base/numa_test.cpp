#include "base/numa.h"

#include <gtest/gtest.h>

#include <fstream>
#include <mutex>
#include <vector>

#include "base/temp_folder.h"
#include "base/thread_pool.h"

namespace tidepool {
namespace {

TEST(CpuLists, AreReadAsLinuxWritesThem) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11\n"), (CpuList{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("5"), CpuList{5});
  EXPECT_EQ(parse_cpu_list("1023"), CpuList{1023});
  EXPECT_EQ(parse_cpu_list("\n"), CpuList{});  // a node of memory alone
  EXPECT_EQ(parse_cpu_list("3,1-2,2"), (CpuList{1, 2, 3}));
}

TEST(CpuLists, AnythingElseIsRefused) {
  for (const char* text : {"a", "1-", "-1", "3-1", "1,,2", "1 2", "1024", "0-99999", "99999999999999999999", "1-2-3"})
    EXPECT_EQ(parse_cpu_list(text), std::nullopt) << text;
}

/// A folder as sysfs has it, one list a node.
void write_nodes(const TempFolder& folder, const std::vector<const char*>& lists) {
  for (size_t node = 0; node < lists.size(); ++node) {
    const std::filesystem::path path = folder / ("node" + std::to_string(node));
    std::filesystem::create_directory(path);
    std::ofstream(path / "cpulist") << lists[node] << '\n';
  }
}

cpu_set_t first_cpus(int count) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu = 0; cpu < count; ++cpu)
    CPU_SET(cpu, &set);
  return set;
}

TEST(MemoryNodes, HaveTheProcessorsThatThisProcessMayUse) {
  const TempFolder folder;
  write_nodes(folder, {"0-3", "4-7", "", "8-11"});
  EXPECT_EQ(memory_nodes(folder.path(), first_cpus(6)), (std::vector<CpuList>{{0, 1, 2, 3}, {4, 5}}));
  EXPECT_EQ(memory_nodes(folder.path(), first_cpus(64)).size(), 3U);
  EXPECT_TRUE(memory_nodes(folder / "nothing", first_cpus(64)).empty());
}

TEST(MemoryNodes, GetEqualPartsOfTheWorkers) {
  std::vector<size_t> nodes;
  for (size_t worker = 0; worker < 7; ++worker)
    nodes.push_back(node_of_worker(worker, 7, 2));
  EXPECT_EQ(nodes, (std::vector<size_t>{0, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(node_of_worker(0, 1, 2), 0U);
}

/// The processors that each thread of a pool may use.
std::vector<CpuList> affinities(ThreadPool& pool) {
  std::vector<CpuList> result(pool.thread_count());
  std::mutex mutex;
  pool.run(64 * pool.thread_count(), [&](size_t, size_t worker) {
    cpu_set_t set;
    CPU_ZERO(&set);
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    const std::lock_guard lock(mutex);
    result[worker].clear();
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) result[worker].push_back(cpu);
    }
  });
  return result;
}

/// On one node that is nowhere in particular: all threads may run wherever the process may.
TEST(MemoryNodes, ThreadsAreKeptOnTheirNodeOnlyWhereThereAreSeveral) {
  const std::vector<CpuList> nodes = memory_nodes();
  ThreadPool pool(3);
  const std::vector<CpuList> threads = affinities(pool);
  for (size_t worker = 1; worker < threads.size(); ++worker) {
    if (threads[worker].empty()) continue;  // came too late to take part
    EXPECT_EQ(threads[worker], nodes.size() > 1 ? nodes[node_of_worker(worker, 3, nodes.size())] : threads[0]);
  }
}

TEST(MemoryNodes, AThreadCanBeKeptOnAProcessorAndLetGoAgain) {
  ThreadPool pool(1);
  const CpuList before = affinities(pool).front();
  keep_on({before.back()});
  EXPECT_EQ(affinities(pool).front(), CpuList{before.back()});
  keep_on(before);
  EXPECT_EQ(affinities(pool).front(), before);
}

}  // namespace
}  // namespace tidepool
