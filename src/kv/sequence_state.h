#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "kernels/kernel_table.h"
#include "kv/kv_layout.h"
#include "kv/window_ring.h"

namespace tidepool {

/// A position of the input as the model sees it.
struct InputToken {
  int32_t id = 0;
  bool is_image = false;  ///< part of an image span: own routing bias, dead for Engram
  friend bool operator==(const InputToken&, const InputToken&) = default;
};

/// Global KV of kBlockTokens tokens over all sources, packed. Shared between forks; written only by a sole owner.
using KvBlock = Buffer<std::byte>;

/// What a sequence knows about its rows: positions, and where the rows of its windows begin and end.
struct SequenceMarks {
  int64_t longest = 0;      ///< largest length ever reached: what the rings were written up to
  int64_t global_end = 0;   ///< positions below brought their global KV along
  bool is_bounded = false;  ///< global KV or windows were computed behind a bounded replay of the encoder
  int64_t encoder_begin = 0;
  int64_t decoder_begin = 0;
  int64_t decoder_end = 0;
  int64_t draft_begin = 0;
  int64_t draft_end = 0;
  friend bool operator==(const SequenceMarks&, const SequenceMarks&) = default;
};

/// Everything a sequence needs to go on: its tokens, packed global KV, window rings and half-filled compressor groups.
/// A value: `fork()` copies it (sharing full blocks), `rollback()` takes positions back. Nothing in it depends on how
/// the tokens were cut into chunks. One thread at a time.
class SequenceState {
 public:
  explicit SequenceState(std::shared_ptr<const KvLayout> layout);
  SequenceState(SequenceState&&) noexcept = default;
  SequenceState& operator=(SequenceState&&) noexcept = default;
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;
  ~SequenceState() = default;

  /// A sequence whose first blocks.size() * kBlockTokens positions have global KV already (`blocks`, shared), while its
  /// windows are empty. `tokens` are the positions before the replay; those from there on are appended again, and up to
  /// global_end() they write windows only. The state is bounded when that replay is too short to be exact.
  /// (docs/kv_cache.md, "Resuming")
  [[nodiscard]] static SequenceState resume(std::shared_ptr<const KvLayout> layout, std::span<const InputToken> tokens,
                                            std::span<const std::shared_ptr<const KvBlock>> blocks);
  /// A sequence with these marks, whose rows the caller puts in place: of the begun block, the windows and the
  /// compressor. `blocks` are the complete ones. CHECKs that the marks are consistent with the tokens.
  [[nodiscard]] static SequenceState restore(std::shared_ptr<const KvLayout> layout, std::span<const InputToken> tokens,
                                             std::span<const std::shared_ptr<const KvBlock>> blocks,
                                             const SequenceMarks& marks);

  /// An independent copy. Blocks are shared until one side writes to them.
  [[nodiscard]] SequenceState fork() const;

  [[nodiscard]] const KvLayout& layout() const { return *layout_; }
  /// Positions processed so far; also the position of the next token.
  [[nodiscard]] int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  [[nodiscard]] std::span<const InputToken> tokens() const { return tokens_; }

  [[nodiscard]] const SequenceMarks& marks() const { return marks_; }
  /// Positions below this have global KV that a resumed sequence brought along and no row may write again.
  [[nodiscard]] int64_t global_end() const { return marks_.global_end; }
  /// Whether a bounded replay of the encoder lies behind it, so that its global KV is not exact.
  [[nodiscard]] bool is_bounded() const { return marks_.is_bounded; }
  /// The blocks that it was resumed with were computed behind a bounded replay.
  void mark_bounded() { marks_.is_bounded = true; }
  /// Blocks of global KV: block i covers positions [i * kBlockTokens, (i + 1) * kBlockTokens), the last may be begun
  /// only.
  [[nodiscard]] std::span<const std::shared_ptr<KvBlock>> blocks() const { return blocks_; }

  /// Appends tokens and makes room for their global KV: new blocks, and a copy of a shared block that will be written
  /// to. The rows themselves are written by the layers, from any thread, each row by one.
  void append(std::span<const InputToken> tokens);

  /// Takes back all positions from `new_length` on. At most layout().rollback_max positions below the longest length
  /// ever reached: what the rings still hold. Afterwards the state equals one that never went further, unless it goes
  /// below the length of a prompt of which the decoder read the last positions only: the decoder's windows then lack
  /// that many rows at their beginning.
  void rollback(int64_t new_length);
  /// Whether rollback() may be asked for `new_length`.
  [[nodiscard]] bool can_rollback(int64_t new_length) const;

  /// Entry `index` of source `source` (entry j covers tokens [j*ratio, (j+1)*ratio)).
  [[nodiscard]] const std::byte* entry(size_t source, int64_t index) const;
  /// The index key of the same entry.
  [[nodiscard]] const std::byte* key(size_t source, int64_t index) const;
  /// The same places for the layer that computes them; append() has made room. Not below global_end().
  [[nodiscard]] std::span<std::byte> entry_for_write(size_t source, int64_t index);
  [[nodiscard]] std::span<std::byte> key_for_write(size_t source, int64_t index);
  /// The keys of one source that lie in memory one after the other from `index` on, at most `count`.
  [[nodiscard]] kernels::KeyRun key_run(size_t source, int64_t index, int64_t count) const;

  /// Rings of the layers, then those of the draft stages.
  [[nodiscard]] WindowRing& window(size_t layer) { return windows_[layer]; }
  [[nodiscard]] const WindowRing& window(size_t layer) const { return windows_[layer]; }
  /// First position whose window row of `layer` is valid: 0, or where the encoder's, the decoder's or the draft stages'
  /// rows began.
  [[nodiscard]] int64_t window_begin(size_t layer) const {
    if (layer >= layout_->window_layers) return marks_.draft_begin;
    return layer < layout_->first_decoder_layer ? marks_.encoder_begin : marks_.decoder_begin;
  }

  /// Decoder rows are about to be written for [begin, length()): goes on where the last ones ended, or starts a new
  /// window at `begin` when it does not touch them.
  void begin_decoder_rows(int64_t begin);
  /// Positions [window_begin, decoder_end) have decoder window rows.
  [[nodiscard]] int64_t decoder_end() const { return marks_.decoder_end; }

  /// The same for the windows of the draft stages, which have the positions [draft_begin, draft_end). They only speed
  /// up: a sequence without them goes on alike, so nothing may depend on having them.
  void begin_draft_rows(int64_t begin);
  [[nodiscard]] int64_t draft_begin() const { return marks_.draft_begin; }
  [[nodiscard]] int64_t draft_end() const { return marks_.draft_end; }

  /// Compressor input of one token of a source with ratio 2: kv then gate, [2 * entry_width], kept for the last few
  /// positions, so that a group can be finished by the next token, or again after a rollback.
  [[nodiscard]] std::span<float> compressor_row(size_t source, int64_t position);
  [[nodiscard]] std::span<const float> compressor_row(size_t source, int64_t position) const;
  /// So many of the last positions have a compressor row.
  [[nodiscard]] int64_t compressor_ring_rows() const { return layout_->rollback_max + 2; }

  /// Bytes of memory held: shared blocks count fully.
  [[nodiscard]] size_t bytes() const;

 private:
  [[nodiscard]] static std::vector<std::shared_ptr<KvBlock>> adopt(
      std::span<const std::shared_ptr<const KvBlock>> blocks);

  std::shared_ptr<const KvLayout> layout_;
  std::vector<InputToken> tokens_;
  std::vector<std::shared_ptr<KvBlock>> blocks_;
  std::vector<WindowRing> windows_;
  std::vector<Buffer<float>> compressor_rows_;  ///< per source; empty when its ratio is 1
  SequenceMarks marks_;
};

/// True when two states would go on alike: same tokens, and equal bytes in every row that a later token can read.
[[nodiscard]] bool same_state(const SequenceState& a, const SequenceState& b);
/// True when two states would draft alike: equal bytes in every row of the draft windows that a draft can read.
[[nodiscard]] bool same_draft_windows(const SequenceState& a, const SequenceState& b);

}  // namespace tidepool
