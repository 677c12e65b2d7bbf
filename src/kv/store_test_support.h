#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/temp_folder.h"
#include "kv/disk_store.h"

/// Blocks, snapshots and stores for the tests of the disk store.
namespace tidepool::store {

/// A key that `words` alone decide; not a hash of anything.
inline BlockKey test_key(uint64_t chain, int64_t index) {
  BlockKey key;
  uint64_t state = chain * 0x9e3779b97f4a7c15U + static_cast<uint64_t>(index + 2) * 0xbf58476d1ce4e5b9U;
  for (std::byte& byte : key.digest) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<std::byte>(state >> 32);
  }
  return key;
}

inline std::vector<std::byte> test_bytes(size_t count, uint64_t seed) {
  std::vector<std::byte> bytes(count);
  uint64_t state = seed * 0x9e3779b97f4a7c15U + 1;
  for (size_t at = 0; at < count; at += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(bytes.data() + at, &state, std::min(sizeof state, count - at));
  }
  return bytes;
}

/// Block `index` of `chain`; its bytes follow from both and from `is_bounded`.
inline StoredBlock test_block(uint64_t chain, int64_t index, size_t bytes, bool is_bounded = false) {
  KvBlock data(bytes);
  const std::vector<std::byte> values =
      test_bytes(bytes, chain * 1000003 + static_cast<uint64_t>(index) * 2 + (is_bounded ? 1 : 0));
  std::copy(values.begin(), values.end(), data.data());
  StoredBlock block;
  block.key = test_key(chain, index);
  block.parent = test_key(chain, index - 1);
  block.index = index;
  block.is_bounded = is_bounded;
  block.tokens.assign(static_cast<size_t>(kBlockTokens),
                      static_cast<int32_t>(chain * 1000) + static_cast<int32_t>(index));
  block.data = std::make_shared<const KvBlock>(std::move(data));
  return block;
}

inline bool same_block(const StoredBlock& a, const StoredBlock& b) {
  return a.key == b.key && a.parent == b.parent && a.index == b.index && a.is_bounded == b.is_bounded &&
         a.tokens == b.tokens && std::ranges::equal(a.data->span(), b.data->span());
}

inline StoredSnapshot test_snapshot(uint64_t chain, int64_t parent_index, int64_t length, size_t bytes) {
  return {.key = test_key(chain + 77777, length),
          .parent = test_key(chain, parent_index),
          .length = length,
          .bytes = test_bytes(bytes, chain + static_cast<uint64_t>(length))};
}

inline std::vector<BlockKey> test_chain(uint64_t chain, int64_t count) {
  std::vector<BlockKey> keys;
  for (int64_t i = 0; i < count; ++i)
    keys.push_back(test_key(chain, i));
  return keys;
}

/// A clock that tests set.
struct TestClock {
  std::shared_ptr<std::atomic<int64_t>> time = std::make_shared<std::atomic<int64_t>>(1'800'000'000);
  [[nodiscard]] std::function<int64_t()> now() const {
    return [at = time] { return at->load(); };
  }
};

/// A folder and a clock for stores that come one after the other.
class DiskStoreTest : public testing::Test {
 protected:
  static constexpr size_t kBlockBytes = 3000;

  [[nodiscard]] DiskStoreOptions options() const {
    DiskStoreOptions result;
    result.folder = folder_.path() / "kv";
    result.capacity_bytes = uint64_t{64} << 20;
    result.snapshot_capacity_bytes = uint64_t{16} << 20;
    result.read_threads = 4;
    result.now = clock_.now();
    return result;
  }
  /// Writes blocks [from, to) of `chain` and waits for the disk.
  static void write_chain(BlockStore& store, uint64_t chain, int64_t from, int64_t to, size_t bytes = kBlockBytes) {
    for (int64_t i = from; i < to; ++i)
      ASSERT_TRUE(store.write(test_block(chain, i, bytes)));
    store.flush();
  }
  /// How many of the first `count` blocks of `chain` are found and read as they were written. Wrong bytes fail the
  /// test.
  static int64_t hits(BlockStore& store, uint64_t chain, int64_t count, size_t bytes = kBlockBytes) {
    const std::vector<BlockKey> keys = test_chain(chain, count);
    const std::vector<BlockStore::ReadResult> results = store.read(keys);
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
      const std::optional<StoredBlock>& block = results[static_cast<size_t>(i)].block;
      if (!block) continue;
      ++found;
      EXPECT_TRUE(same_block(*block, test_block(chain, i, bytes, block->is_bounded))) << "a wrong answer, block " << i;
    }
    return found;
  }
  [[nodiscard]] std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> result;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path() / "kv"))
      result.push_back(entry.path());
    std::ranges::sort(result);
    return result;
  }
  [[nodiscard]] uint64_t file_bytes() const {
    uint64_t sum = 0;
    for (const std::filesystem::path& file : files())
      sum += std::filesystem::file_size(file);
    return sum;
  }

  TempFolder folder_;
  TestClock clock_;
};

}  // namespace tidepool::store
