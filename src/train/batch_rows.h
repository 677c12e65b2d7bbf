#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "train/token_batch.h"

namespace tidepool {

/// Rows [begin, begin + count) of a matrix: the positions of one sample from `position` on.
struct SampleRows {
  size_t begin = 0;
  size_t count = 0;
  size_t position = 0;
};

/// Which positions of which samples the rows of a matrix are: one entry a sample, in the batch's order.
struct BatchRows {
  std::vector<SampleRows> samples;
  size_t rows = 0;
};

/// All positions: what the encoder runs over.
[[nodiscard]] BatchRows encoder_rows(const TokenBatch& batch);
/// The positions from each segment's `decoder_begin` on: what the decoder runs over.
[[nodiscard]] BatchRows decoder_rows(const TokenBatch& batch);

/// Position of each row in its sample.
[[nodiscard]] std::vector<uint32_t> positions_of(const BatchRows& rows);

/// Global entries of all samples, one matrix: those of a sample are rows [begin, begin + count). A group of `ratio`
/// tokens makes one; what is left of a sample makes none. (docs/model.md 2.2)
struct EntryRows {
  struct Sample {
    size_t begin = 0;
    size_t count = 0;
  };
  size_t ratio = 1;
  std::vector<Sample> samples;
  size_t rows = 0;

  /// Entries a position may read: j < floor((position + 1) / ratio).
  [[nodiscard]] size_t visible(size_t position) const { return (position + 1) / ratio; }
};

[[nodiscard]] EntryRows entry_rows(const TokenBatch& batch, size_t ratio);

}  // namespace tidepool
