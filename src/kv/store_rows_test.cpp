#include "kv/store_rows.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace tidepool::store {
namespace {

/// A table of 4,096 runs of four billion rows of no bytes would be gone through
/// for hours.
TEST(StoreRows, RowsOfNoBytesAreDamage) {
  constexpr uint32_t kRuns = 4096;
  constexpr std::array<uint32_t, 2> kRun = {UINT32_MAX, 0};
  std::vector<std::byte> stored(sizeof kRuns + kRuns * sizeof kRun);
  std::memcpy(stored.data(), &kRuns, sizeof kRuns);
  for (size_t i = 0; i < kRuns; ++i)
    std::memcpy(stored.data() + sizeof kRuns + i * sizeof kRun, kRun.data(), sizeof kRun);
  // Their two planes: the length of a zstd frame, and one of nothing.
  constexpr std::array<uint8_t, 13> kPlane = {9, 0, 0, 0, 0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0};
  for (int plane = 0; plane < 2; ++plane)
    for (const uint8_t byte : kPlane)
      stored.push_back(std::byte{byte});
  EXPECT_FALSE(expand_rows(stored, {}));
}

}  // namespace
}  // namespace tidepool::store
