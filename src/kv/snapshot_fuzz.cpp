// Input: the bytes of a snapshot, for a small layout. What is accepted must restore to a state that can be used.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/check.h"
#include "kv/kv_test_support.h"
#include "kv/snapshot.h"

namespace {

using tidepool::Digest;
using tidepool::InputToken;
using tidepool::KvBlock;
using tidepool::KvLayout;
using tidepool::SequenceState;
using tidepool::SnapshotInfo;

/// The input with a checksum that fits: else nothing would come past it.
std::vector<std::byte> with_checksum(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Digest)) return {bytes.begin(), bytes.end()};
  std::vector<std::byte> result(bytes.begin(), bytes.end() - static_cast<std::ptrdiff_t>(sizeof(Digest)));
  const Digest digest = tidepool::sha256(result);
  result.insert(result.end(), digest.begin(), digest.end());
  return result;
}

void use(const std::shared_ptr<const KvLayout>& layout, std::span<const std::byte> bytes) {
  const std::optional<SnapshotInfo> info = tidepool::read_snapshot_info(*layout, bytes);
  if (!info) return;
  constexpr int64_t kBlocksMax = 16;  // of blocks and tokens the test has to make up
  if (info->tail_begin() > kBlocksMax * tidepool::kBlockTokens) return;
  const std::vector<InputToken> tokens(static_cast<size_t>(info->tail_begin()));
  const std::vector<std::shared_ptr<const KvBlock>> blocks(
      static_cast<size_t>(info->tail_begin() / tidepool::kBlockTokens),
      std::make_shared<const KvBlock>(layout->block_bytes));
  std::optional<SequenceState> state = tidepool::restore_snapshot(layout, bytes, tokens, blocks);
  TIDEPOOL_CHECK(state.has_value() && state->length() == info->length, "what was read can be restored");
  TIDEPOOL_CHECK(tidepool::write_snapshot(*state, info->images).size() <=
                     bytes.size() + static_cast<size_t>(layout->ring_rows()) * 1000,
                 "and written again");
  const std::vector<InputToken> next(3);
  tidepool::kv_testing::read_tokens(*state, next);
  if (state->can_rollback(info->length)) state->rollback(info->length);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<const KvLayout> layout = tidepool::kv_testing::small_layout();
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  use(layout, bytes);
  use(layout, with_checksum(bytes));
  return 0;
}
