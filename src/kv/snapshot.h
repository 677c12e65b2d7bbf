#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/block_key.h"
#include "kv/sequence_state.h"

namespace tidepool {

/// What a snapshot says of itself: the state of a sequence behind its complete blocks. (docs/kv_cache.md, "Snapshots")
struct SnapshotInfo {
  int64_t length = 0;  ///< tokens of the sequence
  SequenceMarks marks;
  std::vector<InputToken> tail;   ///< tokens behind the last complete block
  std::vector<ImageSpan> images;  ///< those that touch the tail

  /// First position of the tail.
  [[nodiscard]] int64_t tail_begin() const { return length / kBlockTokens * kBlockTokens; }
};

/// The state as bytes: all of it that blocks do not hold. `images` are those of the sequence. CHECKs that the sequence
/// is not within a replay.
[[nodiscard]] std::vector<std::byte> write_snapshot(const SequenceState& state, std::span<const ImageSpan> images);

/// What the bytes of write_snapshot() say, without reading them.
[[nodiscard]] SnapshotInfo snapshot_info(const SequenceState& state, std::span<const ImageSpan> images);

/// What the bytes say, or nothing when they are damaged, of another version, or
/// of a model of other shapes. Checks every byte.
[[nodiscard]] std::optional<SnapshotInfo> read_snapshot_info(const KvLayout& layout, std::span<const std::byte> bytes);

/// The state that was written, or nothing, as above. `tokens` are those of the complete blocks, `blocks` these blocks:
/// as many as the snapshot needs, which CHECKs.
[[nodiscard]] std::optional<SequenceState> restore_snapshot(std::shared_ptr<const KvLayout> layout,
                                                            std::span<const std::byte> bytes,
                                                            std::span<const InputToken> tokens,
                                                            std::span<const std::shared_ptr<const KvBlock>> blocks);

/// How many tokens of `text` a sequence shares with it that goes on with `tail` (and `images`) from `begin` on, all
/// that is before being equal. Counts from `begin`.
[[nodiscard]] int64_t common_tokens(const CacheText& text, int64_t begin, std::span<const InputToken> tail,
                                    std::span<const ImageSpan> images);

}  // namespace tidepool
