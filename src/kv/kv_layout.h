#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "formats/row_format.h"

namespace tidepool {

/// Tokens of a block: even, so that no compressor group of two straddles it, and a multiple of the candidate block.
/// (docs/kv_cache.md)
inline constexpr int64_t kBlockTokens = 128;

/// One layer that owns global KV: a latent and an index key for every `ratio` tokens.
struct KvSource {
  int64_t ratio = 1;
  RowFormat entry_format = RowFormat::kFp4Block16;
  RowFormat key_format = RowFormat::kFp4Block32;
  size_t entry_width = 0;     ///< values of an entry
  size_t key_width = 0;       ///< values of an index key
  size_t entry_bytes = 0;     ///< of an entry, packed
  size_t key_bytes = 0;       ///< of an index key, packed
  size_t entries_offset = 0;  ///< of its entries, from the start of a block
  size_t keys_offset = 0;     ///< of its index keys, from the start of a block

  [[nodiscard]] int64_t rows_per_block() const { return kBlockTokens / ratio; }
};

/// Sizes of everything a sequence keeps; follows from the config alone.
struct KvLayout {
  std::vector<KvSource> sources;
  size_t block_bytes = 0;  ///< of one block over all sources

  size_t window_layers = 0;        ///< layers with a window ring (all of them)
  size_t first_decoder_layer = 0;  ///< its window and those above hold only rows that entered the decoder
  int64_t window = 0;              ///< positions a query sees, itself included
  RowFormat window_format = RowFormat::kFp8Block32;
  size_t window_width = 0;
  size_t window_row_bytes = 0;

  /// Draft stages with a window ring of their own; their rings follow those of the layers. 0 without drafts.
  size_t draft_stages = 0;

  /// Positions that can be taken back (rejected drafts) without recomputing: each ring is that much longer.
  int64_t rollback_max = 8;

  [[nodiscard]] int64_t ring_rows() const { return window + rollback_max; }

  /// Positions that the encoder must read before the first one whose output and global KV are exact: each of its
  /// layers looks back window - 1 positions. (docs/model.md 1.3)
  [[nodiscard]] int64_t encoder_halo() const { return static_cast<int64_t>(first_decoder_layer) * (window - 1); }
  /// The same for the decoder: what it must read of a prompt before the last position, whose logits are wanted. Then
  /// its windows are exact too, as far as later positions see them.
  [[nodiscard]] int64_t decoder_halo() const {
    return static_cast<int64_t>(window_layers - first_decoder_layer) * (window - 1);
  }
};

/// Fills the derived fields (bytes, offsets, block_bytes) from ratio, formats and widths.
void finish_kv_layout(KvLayout& layout);

}  // namespace tidepool
