#include "model/compressor.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tidepool {

namespace {

/// A global entry that this pass completes.
struct Group {
  SequenceState* state;
  int64_t entry;
  size_t last_row;  ///< the pass's row of the group's last token
};

std::vector<Group> completed_groups(const ForwardPass& pass, int64_t ratio) {
  std::vector<Group> groups;
  for (const PassSegment& segment : pass.segments) {
    const int64_t end = segment.position + static_cast<int64_t>(segment.rows);
    const int64_t begin = std::max(segment.position, segment.state->global_end());
    for (int64_t entry = begin / ratio; (entry + 1) * ratio <= end; ++entry) {
      const int64_t last = (entry + 1) * ratio - 1;
      groups.push_back({segment.state, entry, segment.row_begin + static_cast<size_t>(last - segment.position)});
    }
  }
  return groups;
}

/// Ratio 1: the latent before its norm is the projection itself. Replayed rows have no group, so rows are gathered.
void project_single(const GlobalKvWriter& writer, const ForwardPass& pass, const std::vector<Group>& groups,
                    Span2d<const float> x, Span2d<float> latents) {
  const Arena::Scope scope(*pass.arena);
  const Span2d<float> gathered = pass.arena->matrix(groups.size(), x.cols);
  for (size_t g = 0; g < groups.size(); ++g)
    std::ranges::copy(x.row(groups[g].last_row), gathered.row(g).begin());
  writer.math.linear(writer.compressor.wkv, gathered, latents);
}

/// Keeps the last rows' kv and gate in the sequence, as many as it remembers.
void remember_rows(const GlobalKvWriter& writer, const ForwardPass& pass, Span2d<const float> kv_gate) {
  for (const PassSegment& segment : pass.segments) {
    const auto kept = std::min(segment.rows, static_cast<size_t>(segment.state->layout().rollback_max + 2));
    for (size_t i = segment.rows - kept; i < segment.rows; ++i) {
      std::ranges::copy(
          kv_gate.row(segment.row_begin + i),
          segment.state->compressor_row(writer.plan.kv_slot, segment.position + static_cast<int64_t>(i)).begin());
    }
  }
}

/// Ratio 2: pools each completed pair; the first token of a pair may have come with an earlier pass.
void project_pairs(const GlobalKvWriter& writer, const ForwardPass& pass, const std::vector<Group>& groups,
                   Span2d<const float> x, Span2d<float> latents) {
  const Arena::Scope scope(*pass.arena);
  const size_t width = latents.cols;
  const Span2d<float> kv_gate = pass.arena->matrix(pass.rows, 2 * width);
  const Span2d<float> kv = kv_gate.col_range(0, width);
  const Span2d<float> gate = kv_gate.col_range(width, width);
  writer.math.linear_unrounded(writer.compressor.wkv, x, kv);
  writer.math.linear_unrounded(writer.compressor.wgate, x, gate);
  writer.math.for_rows(groups.size(), [&](size_t g, size_t) {
    const Group& group = groups[g];
    const int64_t first_position = group.entry * writer.plan.ratio;
    const bool first_is_here = group.last_row > 0 && pass.segment(group.last_row).row_begin < group.last_row;
    const std::span<const float> first =
        first_is_here ? std::span<const float>(kv_gate.row(group.last_row - 1))
                      : std::as_const(*group.state).compressor_row(writer.plan.kv_slot, first_position);
    pool_pair(first, kv_gate.row(group.last_row), latents.row(g));
    writer.math.round(latents.row(g));
  });
  remember_rows(writer, pass, kv_gate);
}

/// Rotates the last rope_dim values of `row` as position `position`, with its rounding point.
void rotate_row(const GlobalKvWriter& writer, int64_t position, std::span<float> row, std::span<float> angles) {
  const size_t pairs = writer.rope.pairs();
  writer.rope.angles(position, angles.first(pairs), angles.subspan(pairs, pairs));
  writer.math.kernels().rope(row.data() + row.size() - writer.rope_dim, angles.data(), angles.data() + pairs, pairs,
                             1.0F);
  writer.math.round(row);
}

void record_entries(const GlobalKvWriter& writer, const ForwardPass& pass, const std::vector<Group>& groups,
                    Span2d<const float> latents) {
  if (pass.probe == nullptr || groups.empty()) return;
  const auto layer = static_cast<int64_t>(writer.plan.index);
  const KvSource& source = groups.front().state->layout().sources[writer.plan.kv_slot];
  pass.probe->record("latent", layer, groups.front().entry, latents);
  std::vector<float> row(std::max(source.entry_width, source.key_width));
  for (const Group& group : groups) {
    unpack_row(source.entry_format, {group.state->entry(writer.plan.kv_slot, group.entry), source.entry_bytes},
               std::span(row).first(source.entry_width));
    pass.probe->record("compress_kv", layer, group.entry, Span2d<const float>(row.data(), 1, source.entry_width));
    unpack_row(source.key_format, {group.state->key(writer.plan.kv_slot, group.entry), source.key_bytes},
               std::span(row).first(source.key_width));
    pass.probe->record("index_k", layer, group.entry, Span2d<const float>(row.data(), 1, source.key_width));
  }
}

}  // namespace

void pool_pair(std::span<const float> first, std::span<const float> second, std::span<float> out) {
  const size_t width = out.size();
  for (size_t c = 0; c < width; ++c) {
    const float largest = std::max(first[width + c], second[width + c]);
    const float a = std::exp(first[width + c] - largest);
    const float b = std::exp(second[width + c] - largest);
    const float sum = a + b;
    out[c] = first[c] * (a / sum) + second[c] * (b / sum);
  }
}

void write_global_kv(const GlobalKvWriter& writer, const ForwardPass& pass, Span2d<const float> x) {
  const std::vector<Group> groups = completed_groups(pass, writer.plan.ratio);
  const Arena::Scope scope(*pass.arena);
  const Math& math = writer.math;
  const Span2d<float> latents = pass.arena->matrix(groups.size(), writer.compressor.wkv.out);
  if (writer.plan.ratio == 1) {
    project_single(writer, pass, groups, x, latents);
  } else {
    project_pairs(writer, pass, groups, x, latents);
  }
  math.rms_norm_rows(latents, writer.compressor.norm, writer.norm_eps, latents);

  // The index key comes from the latent as it is before rotation and quantisation.
  const Span2d<float> keys = pass.arena->matrix(groups.size(), writer.index_key.wk.out);
  math.linear(writer.index_key.wk, latents, keys);
  math.rms_norm_rows(keys, writer.index_key.k_norm, writer.norm_eps, keys);

  const Span2d<float> entries = pass.arena->matrix(groups.size(), latents.cols);
  const Span2d<float> angles = pass.arena->matrix(math.workers(), 2 * writer.rope.pairs());
  math.for_rows(groups.size(), [&](size_t g, size_t worker) {
    const Group& group = groups[g];
    const int64_t position = writer.unscaled_rope_position ? group.entry : group.entry * writer.plan.ratio;
    const KvSource& source = group.state->layout().sources[writer.plan.kv_slot];
    std::ranges::copy(latents.row(g), entries.row(g).begin());
    rotate_row(writer, position, entries.row(g), angles.row(worker));
    pack_row(source.entry_format, entries.row(g), group.state->entry_for_write(writer.plan.kv_slot, group.entry));
    rotate_row(writer, position, keys.row(g), angles.row(worker));
    pack_row(source.key_format, keys.row(g), group.state->key_for_write(writer.plan.kv_slot, group.entry));
  });
  record_entries(writer, pass, groups, latents);
}

}  // namespace tidepool
