#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/block_key.h"
#include "kv/block_store.h"
#include "kv/kv_layout.h"
#include "kv/sequence_state.h"

namespace tidepool {

/// Where the KV of a prompt's beginning came from.
enum class CacheTier : uint8_t { kNone, kSnapshotRam, kSnapshotDisk, kPages, kDisk };
/// "none", "snapshot_ram", "snapshot_disk", "pages", "disk".
[[nodiscard]] std::string_view cache_tier_name(CacheTier tier);

/// Why no more of a prompt was found.
enum class MatchEnd : uint8_t {
  kComplete,        ///< all that may be reused was: only the prompt's new part is computed
  kDiffers,         ///< a kept context goes on differently: at `first_difference`
  kNotSeen,         ///< no kept context begins so
  kEvicted,         ///< it was kept and made room for others
  kExpired,         ///< it was kept and its time was over
  kChecksum,        ///< it was kept and its bytes are damaged
  kUnreadable,      ///< it is kept, but the disk refused to read it now
  kBelowBreakEven,  ///< reusing it would cost more than it saves
};
/// "complete", "differs", "not_seen", "evicted", "expired", "checksum", "unreadable", "below_break_even".
[[nodiscard]] std::string_view match_end_name(MatchEnd end);

/// What happened to one prompt, as every answer reports it. Never says anything of contexts under another salt.
struct CacheReport {
  int64_t prompt_tokens = 0;
  int64_t hit_tokens = 0;             ///< whose global KV was reused; the others of the prompt are missed
  CacheTier tier = CacheTier::kNone;  ///< the slowest that was needed
  int64_t pages_tokens = 0;           ///< of the hits, from RAM
  int64_t disk_tokens = 0;            ///< of the hits, from disk
  int64_t replayed_tokens = 0;        ///< of the hits, read once more for the windows
  bool is_exact = true;               ///< no bounded replay lies behind it
  MatchEnd end = MatchEnd::kNotSeen;
  std::optional<int64_t> first_difference;  ///< kDiffers: position in the prompt
};

struct KvCacheOptions {
  Digest model{};                          ///< model fingerprint (model/fingerprint.h)
  size_t ram_bytes = 0;                    ///< --kv-ram: blocks of live and of recent sequences
  size_t snapshot_ram_bytes = 0;           ///< --snapshot-ram
  std::chrono::seconds snapshot_ttl{600};  ///< --snapshot-ttl
  std::shared_ptr<BlockStore> store;       ///< may be null: nothing outlives the process
  /// For tests; steady time otherwise.
  std::function<std::chrono::steady_clock::time_point()> now;
};

/// KV that outlives the sequence that computed it: pages and snapshots in RAM, blocks and snapshots on disk, found by
/// their content. Thread-safe. (docs/kv_cache.md)
class KvCache {
 public:
  KvCache(std::shared_ptr<const KvLayout> layout, KvCacheOptions options);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;
  /// Moves the newest snapshot of each session to disk and flushes the store.
  ~KvCache();

  /// Room for the blocks that a sequence will fill. Given back when it dies; publish() moves what it publishes from it
  /// to the pages.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&& other) noexcept;
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    ~Reservation();
    [[nodiscard]] int64_t blocks() const { return blocks_; }

   private:
    friend class KvCache;
    KvCache* cache_ = nullptr;
    int64_t blocks_ = 0;
    int64_t free_ = 0;  ///< of these, kept free
  };
  /// Room for the blocks that `state` still lacks to hold `tokens` tokens in all, beside those of live sequences and
  /// what is reserved already. Pages that no live sequence uses are evicted as blocks are published; before that only
  /// as many as `unpublished` tokens need, the most that are computed and not yet published (default: all). Nothing
  /// when there is not enough now: wait without the state, whose pages count as used, or refuse. Throws
  /// Error(kResourceExhausted) naming --kv-ram when there never can be.
  [[nodiscard]] std::optional<Reservation> reserve(const SequenceState& state, int64_t tokens,
                                                   std::optional<int64_t> unpublished = {});

  /// How many blocks are lacking now for reserve() to grant the same; 0: it would.
  [[nodiscard]] int64_t shortage(const SequenceState& state, int64_t tokens) const;

  struct Query {
    CacheText text;  ///< the whole prompt, at least one token
    std::string salt;
    bool exact_replay = false;  ///< replay the whole halo instead of one window
    bool exact_only = false;    ///< take no block that lies behind a bounded replay
  };
  struct Resumed {
    SequenceState state;  ///< holds the first state.length() tokens; the caller reads the others of the prompt
    CacheReport report;
  };
  /// The longest known beginning of a prompt, at most all but its last token. May read from disk; several threads may
  /// be at it. What is taken counts as used now.
  [[nodiscard]] Resumed resume(const Query& query);

  /// Publishes the complete blocks of a sequence that are not known yet. Cheap: shares the blocks with the pages and
  /// queues them for the disk. `reservation` may be null.
  void publish(const SequenceState& state, std::span<const ImageSpan> images, std::string_view salt,
               Reservation* reservation);
  /// Publishes, and keeps the whole state too: at the end of a prompt, and of an output.
  void snapshot(const SequenceState& state, std::span<const ImageSpan> images, std::string_view salt,
                Reservation* reservation);

  /// Drops snapshots whose time is over (the newest of a session moves to disk). The other calls do so too; for an idle
  /// server.
  void expire();

  struct Stats {
    size_t ram_bytes = 0;  ///< of pages, those of live sequences included
    size_t reserved_bytes = 0;
    size_t snapshot_bytes = 0;
    int64_t pages = 0;
    int64_t snapshots = 0;
    uint64_t evicted_pages = 0;
  };
  [[nodiscard]] Stats stats() const;

  struct Impl;  ///< of this floor's own files

 private:
  /// publish(), with `parents`: the root and the keys of all complete blocks.
  void publish_blocks(const SequenceState& state, std::span<const BlockKey> parents, Reservation* reservation);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool
