#include "apps/machine.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/temp_folder.h"

namespace tidepool {
namespace {

class MachineTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  [[nodiscard]] Machine look() const { return look_at_machine(folder_.path(), {folder_ / "meminfo", folder_.path()}); }

  TempFolder folder_;
};

TEST_F(MachineTest, ReadsMeminfo) {
  write("meminfo", "MemTotal:       1000 kB\nMemFree:  100 kB\nMemAvailable:    600 kB\n");
  const Machine machine = look();
  EXPECT_EQ(machine.memory_total, 1'024'000U);
  EXPECT_EQ(machine.memory_available, 614'400U);
  EXPECT_GT(machine.disk_total, 0U);
  EXPECT_LE(machine.disk_free, machine.disk_total);
}

TEST_F(MachineTest, AContainersLimitCounts) {
  write("meminfo", "MemTotal:       1000 kB\nMemAvailable:    600 kB\n");
  write("memory.max", "500000\n");
  write("memory.current", "100000\n");
  EXPECT_EQ(look().memory_total, 500'000U);
  EXPECT_EQ(look().memory_available, 400'000U);
}

TEST_F(MachineTest, NoLimitIsNoLimit) {
  write("meminfo", "MemTotal:       1000 kB\nMemAvailable:    600 kB\n");
  write("memory.max", "max\n");
  EXPECT_EQ(look().memory_total, 1'024'000U);
}

TEST_F(MachineTest, UnknownIsZero) {
  EXPECT_EQ(look().memory_total, 0U);
  EXPECT_EQ(look().memory_available, 0U);
}

}  // namespace
}  // namespace tidepool
