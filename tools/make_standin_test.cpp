#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "base/temp_folder.h"
#include "formats/checkpoint.h"
#include "formats/standin.h"

namespace tidepool {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Opening the release must not cost memory or time in proportion to its 510 GB.
TEST(Standin, TheWholeReleaseIsWrittenAndOpened) {
  const TempFolder folder;
  const auto write_begin = std::chrono::steady_clock::now();
  write_standin(std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "released_config.json", folder.path());
  const double write_seconds = seconds_since(write_begin);

  const auto open_begin = std::chrono::steady_clock::now();
  const auto checkpoint = Checkpoint::open(folder.path());
  const double open_seconds = seconds_since(open_begin);

  const auto tensors = checkpoint->tensors();
  uint64_t bytes = 0;
  for (const auto& tensor : tensors) {
    bytes += tensor.bytes;
  }
  EXPECT_EQ(tensors.size(), 96085U);
  EXPECT_EQ(bytes, 510286023000U);  // metadata.total_size of the released index

  size_t shards = 0;
  uint64_t shard_bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().extension() != ".safetensors") continue;
    ++shards;
    shard_bytes += entry.file_size();
  }
  EXPECT_EQ(shards, 48U);

  // Touching a row of the largest table maps it and reads one page.
  const TensorView table = checkpoint->tensor("layers.14.engram.embed.weight");
  EXPECT_EQ(table.bytes, size_t{384016682} * 256);
  EXPECT_EQ(table.data[table.bytes - 1], std::byte{0});

  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  fmt::print("written in {:.2f} s, opened in {:.2f} s, {} bytes in shards, peak resident {} MB\n", write_seconds,
             open_seconds, shard_bytes, usage.ru_maxrss / 1024);
  EXPECT_LT(usage.ru_maxrss, 1024 * 1024);  // in KiB: 1 GiB
}

}  // namespace
}  // namespace tidepool
