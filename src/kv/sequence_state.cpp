#include "kv/sequence_state.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tidepool {

SequenceState::SequenceState(std::shared_ptr<const KvLayout> layout) : layout_(std::move(layout)) {
  const size_t rings = layout_->window_layers + layout_->draft_stages;
  windows_.reserve(rings);
  for (size_t ring = 0; ring < rings; ++ring) {
    windows_.emplace_back(layout_->ring_rows(), layout_->window_row_bytes);
  }
  for (const KvSource& source : layout_->sources) {
    const size_t rows = source.ratio == 1 ? 0 : static_cast<size_t>(compressor_ring_rows());
    compressor_rows_.emplace_back(rows * 2 * source.entry_width);
  }
}

/// Blocks that others hold too. They are complete: append() copies one before it would write to it.
std::vector<std::shared_ptr<KvBlock>> SequenceState::adopt(std::span<const std::shared_ptr<const KvBlock>> blocks) {
  std::vector<std::shared_ptr<KvBlock>> result;
  result.reserve(blocks.size() + 1);
  for (const std::shared_ptr<const KvBlock>& block : blocks)
    result.push_back(std::const_pointer_cast<KvBlock>(block));
  return result;
}

SequenceState SequenceState::resume(std::shared_ptr<const KvLayout> layout, std::span<const InputToken> tokens,
                                    std::span<const std::shared_ptr<const KvBlock>> blocks) {
  SequenceState result(std::move(layout));
  result.tokens_.assign(tokens.begin(), tokens.end());
  result.blocks_ = adopt(blocks);
  const int64_t length = result.length();
  SequenceMarks& marks = result.marks_;
  marks.longest = length;
  marks.global_end = static_cast<int64_t>(blocks.size()) * kBlockTokens;
  marks.encoder_begin = length;
  marks.decoder_begin = length;
  marks.decoder_end = length;
  marks.draft_begin = length;
  marks.draft_end = length;
  marks.is_bounded = length > 0 && marks.global_end - length < result.layout().encoder_halo();
  TIDEPOOL_CHECK(length <= marks.global_end, "a replay begins where global KV exists");
  return result;
}

SequenceState SequenceState::restore(std::shared_ptr<const KvLayout> layout, std::span<const InputToken> tokens,
                                     std::span<const std::shared_ptr<const KvBlock>> blocks,
                                     const SequenceMarks& marks) {
  SequenceState result(std::move(layout));
  const auto length = static_cast<int64_t>(tokens.size());
  TIDEPOOL_CHECK(static_cast<int64_t>(blocks.size()) == length / kBlockTokens, "every complete block is there");
  TIDEPOOL_CHECK(marks.longest >= length && marks.longest <= length + result.layout().rollback_max &&
                     marks.global_end <= length && marks.decoder_end <= length && marks.draft_end <= length,
                 "the marks belong to the tokens");
  result.tokens_.assign(tokens.begin(), tokens.end());
  result.blocks_ = adopt(blocks);
  if (length % kBlockTokens != 0) result.blocks_.push_back(std::make_shared<KvBlock>(result.layout().block_bytes));
  result.marks_ = marks;
  return result;
}

SequenceState SequenceState::fork() const {
  SequenceState result(layout_);
  result.tokens_ = tokens_;
  result.blocks_ = blocks_;
  for (size_t layer = 0; layer < windows_.size(); ++layer)
    result.windows_[layer] = windows_[layer].copy();
  for (size_t source = 0; source < compressor_rows_.size(); ++source) {
    result.compressor_rows_[source] = compressor_rows_[source].copy();
  }
  result.marks_ = marks_;
  return result;
}

void SequenceState::append(std::span<const InputToken> tokens) {
  const auto first_touched = static_cast<size_t>(std::max(length(), marks_.global_end) / kBlockTokens);
  if (first_touched < blocks_.size() && blocks_[first_touched].use_count() > 1) {
    blocks_[first_touched] = std::make_shared<KvBlock>(blocks_[first_touched]->copy());
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  marks_.longest = std::max(marks_.longest, length());
  const auto needed = static_cast<size_t>((length() + kBlockTokens - 1) / kBlockTokens);
  while (!layout_->sources.empty() && blocks_.size() < needed) {
    blocks_.push_back(std::make_shared<KvBlock>(layout_->block_bytes));
  }
}

bool SequenceState::can_rollback(int64_t new_length) const {
  return new_length >= marks_.global_end && new_length <= length() &&
         new_length >= marks_.longest - layout_->rollback_max;
}

void SequenceState::rollback(int64_t new_length) {
  TIDEPOOL_CHECK(can_rollback(new_length), "rollback reaches further back than the rings remember");
  tokens_.resize(static_cast<size_t>(new_length));
  const auto needed = static_cast<size_t>((new_length + kBlockTokens - 1) / kBlockTokens);
  if (blocks_.size() > needed) blocks_.resize(needed);
  marks_.decoder_end = std::min(marks_.decoder_end, new_length);
  marks_.decoder_begin = std::min(marks_.decoder_begin, marks_.decoder_end);
  marks_.draft_end = std::min(marks_.draft_end, new_length);
  marks_.draft_begin = std::min(marks_.draft_begin, marks_.draft_end);
}

const std::byte* SequenceState::entry(size_t source, int64_t index) const {
  const KvSource& s = layout_->sources[source];
  const int64_t rows = s.rows_per_block();
  return blocks_[static_cast<size_t>(index / rows)]->data() + s.entries_offset +
         static_cast<size_t>(index % rows) * s.entry_bytes;
}

const std::byte* SequenceState::key(size_t source, int64_t index) const {
  const KvSource& s = layout_->sources[source];
  const int64_t rows = s.rows_per_block();
  return blocks_[static_cast<size_t>(index / rows)]->data() + s.keys_offset +
         static_cast<size_t>(index % rows) * s.key_bytes;
}

std::span<std::byte> SequenceState::entry_for_write(size_t source, int64_t index) {
  const KvSource& s = layout_->sources[source];
  KvBlock& block = *blocks_[static_cast<size_t>(index / s.rows_per_block())];
  return {block.data() + s.entries_offset + static_cast<size_t>(index % s.rows_per_block()) * s.entry_bytes,
          s.entry_bytes};
}

std::span<std::byte> SequenceState::key_for_write(size_t source, int64_t index) {
  const KvSource& s = layout_->sources[source];
  KvBlock& block = *blocks_[static_cast<size_t>(index / s.rows_per_block())];
  return {block.data() + s.keys_offset + static_cast<size_t>(index % s.rows_per_block()) * s.key_bytes, s.key_bytes};
}

kernels::KeyRun SequenceState::key_run(size_t source, int64_t index, int64_t count) const {
  const int64_t rows = layout_->sources[source].rows_per_block();
  return {key(source, index), static_cast<size_t>(std::min(count, rows - index % rows))};
}

void SequenceState::begin_decoder_rows(int64_t begin) {
  TIDEPOOL_CHECK(begin >= marks_.decoder_end && begin <= length(), "decoder rows are written forwards");
  if (begin != marks_.decoder_end) marks_.decoder_begin = begin;
  marks_.decoder_end = length();
}

void SequenceState::begin_draft_rows(int64_t begin) {
  TIDEPOOL_CHECK(begin >= marks_.draft_end && begin <= length(), "draft rows are written forwards");
  if (begin != marks_.draft_end) marks_.draft_begin = begin;
  marks_.draft_end = length();
}

std::span<float> SequenceState::compressor_row(size_t source, int64_t position) {
  const size_t width = 2 * layout_->sources[source].entry_width;
  return {compressor_rows_[source].data() + static_cast<size_t>(position % compressor_ring_rows()) * width, width};
}

std::span<const float> SequenceState::compressor_row(size_t source, int64_t position) const {
  const size_t width = 2 * layout_->sources[source].entry_width;
  return {compressor_rows_[source].data() + static_cast<size_t>(position % compressor_ring_rows()) * width, width};
}

size_t SequenceState::bytes() const {
  size_t total = sizeof(*this) + tokens_.capacity() * sizeof(InputToken) + blocks_.size() * layout_->block_bytes;
  for (const WindowRing& window : windows_)
    total += window.bytes();
  for (const Buffer<float>& rows : compressor_rows_)
    total += rows.size() * sizeof(float);
  return total;
}

namespace {

bool same_global(const SequenceState& a, const SequenceState& b) {
  for (size_t source = 0; source < a.layout().sources.size(); ++source) {
    const KvSource& s = a.layout().sources[source];
    for (int64_t index = 0; index < a.length() / s.ratio; ++index) {
      if (std::memcmp(a.entry(source, index), b.entry(source, index), s.entry_bytes) != 0) return false;
      if (std::memcmp(a.key(source, index), b.key(source, index), s.key_bytes) != 0) return false;
    }
    const int64_t open = a.length() / s.ratio * s.ratio;  // tokens of a group that waits for its partner
    for (int64_t position = open; position < a.length(); ++position) {
      if (!std::ranges::equal(a.compressor_row(source, position), b.compressor_row(source, position))) return false;
    }
  }
  return true;
}

bool same_windows(const SequenceState& a, const SequenceState& b) {
  for (size_t layer = 0; layer < a.layout().window_layers; ++layer) {
    const int64_t begin = std::max(a.window_begin(layer), a.length() - a.layout().window);
    if (begin != std::max(b.window_begin(layer), b.length() - b.layout().window)) return false;
    const bool is_decoder = layer >= a.layout().first_decoder_layer;
    if (is_decoder && a.decoder_end() != b.decoder_end()) return false;
    const int64_t end = is_decoder ? a.decoder_end() : a.length();
    for (int64_t position = begin; position < end; ++position) {
      if (!std::ranges::equal(a.window(layer).row(position), b.window(layer).row(position))) return false;
    }
  }
  return true;
}

}  // namespace

bool same_state(const SequenceState& a, const SequenceState& b) {
  return std::ranges::equal(a.tokens(), b.tokens()) && same_global(a, b) && same_windows(a, b);
}

bool same_draft_windows(const SequenceState& a, const SequenceState& b) {
  const KvLayout& layout = a.layout();
  if (a.draft_end() != b.draft_end()) return false;
  const int64_t begin = std::max(a.draft_begin(), a.draft_end() - layout.window);
  if (begin != std::max(b.draft_begin(), b.draft_end() - layout.window)) return false;
  for (size_t ring = layout.window_layers; ring < layout.window_layers + layout.draft_stages; ++ring) {
    for (int64_t position = begin; position < a.draft_end(); ++position) {
      if (!std::ranges::equal(a.window(ring).row(position), b.window(ring).row(position))) return false;
    }
  }
  return true;
}

}  // namespace tidepool
