#include "train/batch_rows.h"

namespace tidepool {

namespace {

BatchRows rows_from(const TokenBatch& batch, bool is_decoder) {
  BatchRows result;
  result.samples.reserve(batch.segments.size());
  for (const TokenBatch::Segment& segment : batch.segments) {
    const size_t position = is_decoder ? segment.decoder_begin : 0;
    const size_t count = segment.count - position;
    result.samples.push_back({.begin = result.rows, .count = count, .position = position});
    result.rows += count;
  }
  return result;
}

}  // namespace

BatchRows encoder_rows(const TokenBatch& batch) {
  return rows_from(batch, false);
}

BatchRows decoder_rows(const TokenBatch& batch) {
  return rows_from(batch, true);
}

std::vector<uint32_t> positions_of(const BatchRows& rows) {
  std::vector<uint32_t> positions;
  positions.reserve(rows.rows);
  for (const SampleRows& sample : rows.samples) {
    for (size_t i = 0; i < sample.count; ++i)
      positions.push_back(static_cast<uint32_t>(sample.position + i));
  }
  return positions;
}

EntryRows entry_rows(const TokenBatch& batch, size_t ratio) {
  EntryRows result;
  result.ratio = ratio;
  result.samples.reserve(batch.segments.size());
  for (const TokenBatch::Segment& segment : batch.segments) {
    result.samples.push_back({.begin = result.rows, .count = segment.count / ratio});
    result.rows += segment.count / ratio;
  }
  return result;
}

}  // namespace tidepool
