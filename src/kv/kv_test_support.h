#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kv/kv_cache.h"

/// What tests of the cache need: a model that only marks what it has read, and a store in memory.
namespace tidepool::kv_testing {

/// Small, with everything in it: sources of ratio 2 and 1, encoder and decoder, draft windows.
inline std::shared_ptr<const KvLayout> small_layout(size_t draft_stages = 1) {
  KvLayout layout;
  for (const int64_t ratio : {2, 1}) {
    KvSource source;
    source.ratio = ratio;
    source.entry_width = 32;
    source.key_width = 32;
    layout.sources.push_back(source);
  }
  layout.window_layers = 4;
  layout.first_decoder_layer = 2;
  layout.window = 16;
  layout.window_width = 32;
  layout.draft_stages = draft_stages;
  finish_kv_layout(layout);
  return std::make_shared<const KvLayout>(layout);
}

/// The released shapes. (docs/kv_cache.md)
inline std::shared_ptr<const KvLayout> released_layout(size_t draft_stages = 0) {
  KvLayout layout;
  for (const int64_t ratio : {2, 2, 2, 1}) {
    KvSource source;
    source.ratio = ratio;
    source.entry_width = 512;
    source.key_width = 128;
    layout.sources.push_back(source);
  }
  layout.window_layers = 40;
  layout.first_decoder_layer = 20;
  layout.window = 128;
  layout.window_width = 512;
  layout.draft_stages = draft_stages;
  finish_kv_layout(layout);
  return std::make_shared<const KvLayout>(layout);
}

inline std::vector<InputToken> random_tokens(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<InputToken> tokens(count);
  for (InputToken& token : tokens)
    token.id = static_cast<int32_t>(random() % 1000);
  return tokens;
}

inline std::vector<InputToken> joined(std::vector<InputToken> a, const std::vector<InputToken>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Reads tokens as a model does: every row it writes is a function of everything up to the row's position, so two
/// states are equal exactly when they hold the right rows.
inline void read_tokens(SequenceState& state, std::span<const InputToken> tokens, int64_t decoder_from = 0) {
  const int64_t begin = state.length();
  state.append(tokens);
  const KvLayout& layout = state.layout();
  std::vector<uint64_t> history;  // of each position: a hash of all tokens up to it
  uint64_t hash = 1;
  for (const InputToken& token : state.tokens()) {
    hash = (hash ^ static_cast<uint64_t>(token.id)) * 0x9E3779B97F4A7C15U + (token.is_image ? 1 : 0);
    history.push_back(hash);
  }
  const auto fill = [&](void* row, size_t bytes, int64_t position, uint64_t place) {
    uint64_t value = history[static_cast<size_t>(position)] * 31 + place;
    auto* out = static_cast<unsigned char*>(row);
    for (size_t i = 0; i < bytes; ++i) {
      value = value * 6364136223846793005U + 1442695040888963407U;
      out[i] = static_cast<unsigned char>((value >> 33U) % 100);
    }
  };
  for (size_t s = 0; s < layout.sources.size(); ++s) {
    const KvSource& source = layout.sources[s];
    for (int64_t entry = std::max(begin, state.global_end()) / source.ratio;
         (entry + 1) * source.ratio <= state.length(); ++entry) {
      fill(state.entry_for_write(s, entry).data(), source.entry_bytes, (entry + 1) * source.ratio - 1, s);
      fill(state.key_for_write(s, entry).data(), source.key_bytes, (entry + 1) * source.ratio - 1, 10 + s);
    }
    for (int64_t position = begin; source.ratio > 1 && position < state.length(); ++position)
      for (float& value : state.compressor_row(s, position))
        value = static_cast<float>(history[static_cast<size_t>(position)] % 1000 + s);
  }
  const int64_t decoder_begin = std::max(begin, decoder_from);
  if (decoder_begin < state.length()) {
    state.begin_decoder_rows(decoder_begin);
    state.begin_draft_rows(decoder_begin);
  }
  for (size_t ring = 0; ring < layout.window_layers + layout.draft_stages; ++ring) {
    const bool is_encoder = ring < layout.first_decoder_layer;
    for (int64_t position = is_encoder ? begin : decoder_begin; position < state.length(); ++position)
      fill(state.window(ring).row(position).data(), layout.window_row_bytes, position, 100 + ring);
  }
}

/// Reads what a resumed state lacks of a prompt; the decoder reads the last window.
inline void finish_prompt(SequenceState& state, std::span<const InputToken> prompt) {
  const int64_t decoder_from = static_cast<int64_t>(prompt.size()) - state.layout().window;
  read_tokens(state, prompt.subspan(static_cast<size_t>(state.length())), decoder_from);
}

/// Keeps everything in memory, and lets a test break it.
class MemoryStore : public BlockStore {
 public:
  std::optional<BlockInfo> find(const BlockKey& key) const override {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(key);
    return found == blocks_.end() ? std::nullopt : std::optional(BlockInfo{found->second.is_bounded});
  }
  Absence absence(const BlockKey& key) const override {
    const std::lock_guard lock(mutex_);
    const auto found = absences_.find(key);
    return found == absences_.end() ? Absence::kNeverSeen : found->second;
  }
  std::vector<BlockKey> children(const BlockKey& parent, size_t limit) const override {
    const std::lock_guard lock(mutex_);
    std::vector<BlockKey> result;
    for (const auto& [key, block] : blocks_)
      if (block.parent == parent && result.size() < limit) result.push_back(key);
    return result;
  }
  std::vector<ReadResult> read(std::span<const BlockKey> keys) override {
    const std::lock_guard lock(mutex_);
    std::vector<ReadResult> results;
    for (const BlockKey& key : keys) {
      ++blocks_read;
      const auto found = blocks_.find(key);
      if (found == blocks_.end()) {
        results.push_back({std::nullopt, Absence::kEvicted});
      } else if (damaged_.contains(key)) {
        results.push_back({std::nullopt, Absence::kChecksum});
        absences_[key] = Absence::kChecksum;
        blocks_.erase(found);
      } else {
        StoredBlock block = found->second;
        block.data = std::make_shared<const KvBlock>(found->second.data->copy());
        results.push_back({std::move(block), Absence::kNeverSeen});
      }
    }
    return results;
  }
  void touch(const BlockKey& key) override {
    const std::lock_guard lock(mutex_);
    touched.insert(key);
  }
  bool write(StoredBlock block) override {
    const std::lock_guard lock(mutex_);
    if (is_full) return false;
    const auto found = blocks_.find(block.key);
    if (found != blocks_.end() && (!found->second.is_bounded || block.is_bounded)) return true;
    if (block_queue == 0) return false;
    --block_queue;
    ++blocks_written;
    block.data = std::make_shared<const KvBlock>(block.data->copy());
    blocks_.insert_or_assign(block.key, std::move(block));
    return true;
  }
  std::vector<BlockKey> take_lost() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(lost_, {});
  }
  std::vector<SnapshotInfo> snapshots(const BlockKey& parent) const override {
    const std::lock_guard lock(mutex_);
    std::vector<SnapshotInfo> result;
    for (const auto& [key, snapshot] : snapshots_)
      if (snapshot.parent == parent) result.push_back({key, snapshot.length});
    return result;
  }
  std::optional<StoredSnapshot> read_snapshot(const BlockKey& key) override {
    const std::lock_guard lock(mutex_);
    const auto found = snapshots_.find(key);
    return found == snapshots_.end() ? std::nullopt : std::optional(found->second);
  }
  bool write_snapshot(StoredSnapshot snapshot) override {
    const std::lock_guard lock(mutex_);
    if (snapshot_queue == 0) return false;
    --snapshot_queue;
    if (!snapshots_.contains(snapshot.key)) snapshot_lengths.push_back(snapshot.length);
    snapshots_.insert_or_assign(snapshot.key, std::move(snapshot));
    return true;
  }
  void flush() override {
    const std::lock_guard lock(mutex_);
    snapshot_queue = snapshot_queue_max;
    block_queue = block_queue_max;
  }
  Stats stats() const override { return {}; }

  void expire_all() { lose_all(Absence::kExpired); }
  void lose_all(Absence why) {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, block] : blocks_)
      absences_[key] = why;
    blocks_.clear();
  }
  /// A block that was taken never got onto the disk.
  void lose(const BlockKey& key) {
    const std::lock_guard lock(mutex_);
    blocks_.erase(key);
    lost_.push_back(key);
  }
  /// The block's bytes no longer fit its checksum.
  void damage(const BlockKey& key) {
    const std::lock_guard lock(mutex_);
    damaged_.insert(key);
  }
  /// Every snapshot has other bytes now.
  void damage_snapshots() {
    const std::lock_guard lock(mutex_);
    for (auto& [key, snapshot] : snapshots_)
      snapshot.bytes[snapshot.bytes.size() / 2] ^= std::byte{1};
  }

  bool is_full = false;                       ///< refuses to write
  int64_t snapshot_queue = int64_t{1} << 40;  ///< snapshots that are taken until the next flush
  int64_t snapshot_queue_max = int64_t{1} << 40;
  int64_t block_queue = int64_t{1} << 40;  ///< blocks that are taken until the next flush
  int64_t block_queue_max = int64_t{1} << 40;
  int64_t blocks_read = 0;
  int64_t blocks_written = 0;
  std::vector<int64_t> snapshot_lengths;  ///< in the order of writing
  std::set<BlockKey> touched;

 private:
  mutable std::mutex mutex_;
  std::map<BlockKey, StoredBlock> blocks_;
  std::map<BlockKey, StoredSnapshot> snapshots_;
  std::map<BlockKey, Absence> absences_;
  std::set<BlockKey> damaged_;
  std::vector<BlockKey> lost_;
};

}  // namespace tidepool::kv_testing
