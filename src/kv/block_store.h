#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/block_key.h"

namespace tidepool {

/// A complete block as it is kept: its place in a chain, what was computed, and how.
struct StoredBlock {
  BlockKey key;
  BlockKey parent;
  int64_t index = 0;            ///< of the block in its chain
  bool is_bounded = false;      ///< computed behind a bounded replay of the encoder, so not exact
  std::vector<int32_t> tokens;  ///< kBlockTokens ids: says where another text first differs
  std::shared_ptr<const KvBlock> data;
};

/// Whole state of a sequence behind its complete blocks (kv/snapshot.h), as bytes.
struct StoredSnapshot {
  BlockKey key;             ///< snapshot_key(): of everything the state depends on
  BlockKey parent;          ///< of its last complete block, or the root
  int64_t length = 0;       ///< tokens of the sequence
  bool is_bounded = false;  ///< a bounded replay lies behind the state
  std::vector<std::byte> bytes;
};

/// Why something that was once kept is not there any more, or was not usable.
enum class Absence : uint8_t {
  kNeverSeen,
  kEvicted,
  kExpired,
  kChecksum,    ///< its bytes are damaged
  kUnreadable,  ///< it is kept, but the disk refused to read it now
};

/// What is kept on disk, for days. Thread-safe. Implementations never throw for what lies on the disk: what cannot be
/// read is absent. (docs/kv_cache.md, "Disk")
class BlockStore {
 public:
  struct BlockInfo {
    bool is_bounded = false;
  };
  /// What reading one block gave: the block, or why there is none.
  struct ReadResult {
    std::optional<StoredBlock> block;
    Absence absence = Absence::kNeverSeen;
  };

  BlockStore() = default;
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;
  virtual ~BlockStore() = default;

  /// From memory, without touching the disk.
  [[nodiscard]] virtual std::optional<BlockInfo> find(const BlockKey& key) const = 0;
  /// Why `key` is not there.
  [[nodiscard]] virtual Absence absence(const BlockKey& key) const = 0;
  /// Keys of the blocks that follow `parent`, at most `limit`.
  [[nodiscard]] virtual std::vector<BlockKey> children(const BlockKey& parent, size_t limit) const = 0;

  /// Reads blocks, several at a time; results in the order of `keys`. Checks every byte.
  [[nodiscard]] virtual std::vector<ReadResult> read(std::span<const BlockKey> keys) = 0;
  /// Counts as a use of the whole chain that ends in `key`: its time to live starts anew.
  virtual void touch(const BlockKey& key) = 0;

  /// Queues a block for writing and returns at once. One that is there already
  /// (and is not replaced by an exact one) is not written twice, unless it
  /// could not be read. Returns false, and counts it, when the queue is full:
  /// the block is not kept.
  virtual bool write(StoredBlock block) = 0;
  /// Blocks that write() took and the disk did not, once it takes writes again:
  /// to be offered anew. Each is named once.
  [[nodiscard]] virtual std::vector<BlockKey> take_lost() = 0;

  /// Snapshots behind the block `parent` (or the root), newest first: their keys and lengths.
  struct SnapshotInfo {
    BlockKey key;
    int64_t length = 0;
  };
  [[nodiscard]] virtual std::vector<SnapshotInfo> snapshots(const BlockKey& parent) const = 0;
  [[nodiscard]] virtual std::optional<StoredSnapshot> read_snapshot(const BlockKey& key) = 0;
  /// Queues a snapshot for writing; as write(), an exact one replacing a
  /// bounded one too.
  virtual bool write_snapshot(StoredSnapshot snapshot) = 0;

  /// Waits until everything queued so far is on the disk (acknowledged: survives kill -9 and loss of power).
  virtual void flush() = 0;

  struct Stats {
    int64_t blocks = 0;
    int64_t snapshots = 0;
    uint64_t disk_bytes = 0;      ///< of the folder
    uint64_t written_bytes = 0;   ///< payload written since opening
    uint64_t dropped_writes = 0;  ///< queue full, or the disk refused
    uint64_t bad_records = 0;     ///< checksum or version did not fit
    uint64_t failed_reads = 0;    ///< of records, refused by the system: misses that cost nothing else
    uint64_t queued = 0;
    std::string last_error;  ///< of the disk, empty when none
  };
  [[nodiscard]] virtual Stats stats() const = 0;
};

}  // namespace tidepool
