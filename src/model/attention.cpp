#include "model/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "formats/row_format.h"

namespace tidepool {

namespace {

/// Cosines and sines of each row's position for this kind of layer.
struct Angles {
  Span2d<const float> cos;
  Span2d<const float> sin;
};

Angles layer_angles(const Attention& attention, const ForwardPass& pass) {
  const bool is_draft = attention.plan.mode == LayerMode::kDraft;
  const bool is_window = attention.plan.mode == LayerMode::kWindow ||
                         (is_draft && attention.config.draft_fault != DraftFault::kGlobalRope);
  return is_window ? Angles{pass.window_cos, pass.window_sin} : Angles{pass.global_cos, pass.global_sin};
}

/// Turns the last rope_dim values of each head of a row by its position (sign +1), or back (sign -1), and rounds.
void rotate_heads(const Attention& attention, const Angles& angles, size_t row, std::span<float> heads, float sign) {
  const size_t width = attention.config.head_dim;
  for (size_t begin = 0; begin < heads.size(); begin += width) {
    float* tail = heads.data() + begin + width - attention.config.rope_dim;
    attention.math.kernels().rope(tail, angles.cos.row(row).data(), angles.sin.row(row).data(), angles.cos.cols, sign);
  }
  attention.math.round(heads);
}

/// The rows' own window entries, packed, [rows, window_row_bytes], from wkv x (which serves as scratch).
Span2d<std::byte> make_window_rows(const Attention& attention, const Angles& angles, const ForwardPass& pass,
                                   Span2d<float> kv) {
  const Math& math = attention.math;
  const KvLayout& layout = pass.segments.front().state->layout();
  const Span2d<std::byte> packed(pass.arena->take<std::byte>(pass.rows * layout.window_row_bytes).data(), pass.rows,
                                 layout.window_row_bytes);
  math.rms_norm_rows(kv, attention.weights.kv_norm, attention.config.norm_eps, kv);
  math.for_rows(pass.rows, [&](size_t row, size_t) {
    rotate_heads(attention, angles, row, kv.row(row), 1.0F);
    pack_row(layout.window_format, kv.row(row), packed.row(row));
    if (pass.probe != nullptr) unpack_row(layout.window_format, packed.row(row), kv.row(row));
  });
  pass.record("window_kv", attention.plan.index, kv);
  return packed;
}

/// Pointers to the rows one position attends to.
struct RowPointers {
  std::vector<const std::byte*> window;
  std::vector<const std::byte*> global;
};

/// A draft row sees the whole window, up to the last position read, and all of its own block.
void find_draft_rows(const Attention& attention, const ForwardPass& pass, Span2d<const std::byte> block_rows,
                     size_t row, RowPointers& out) {
  const PassSegment& segment = pass.segment(row);
  const SequenceState& state = *segment.state;
  const size_t ring = attention.plan.index;
  const DraftFault fault = attention.config.draft_fault;
  const int64_t end = state.draft_end();
  const int64_t newest = fault == DraftFault::kSlidingRows ? pass.position(row) : end - 1;
  for (int64_t p = std::max(state.window_begin(ring), newest - state.layout().window + 1); p < end; ++p)
    out.window.push_back(state.window(ring).row(p).data());
  const size_t block_end = fault == DraftFault::kCausalBlock ? row + 1 : segment.row_begin + segment.rows;
  for (size_t other = segment.row_begin; other < block_end; ++other)
    out.window.push_back(block_rows.row(other).data());
}

void find_rows(const Attention& attention, const ForwardPass& pass, Span2d<const std::byte> window_rows, size_t row,
               RowPointers& out) {
  const PassSegment& segment = pass.segment(row);
  const SequenceState& state = *segment.state;
  const int64_t position = pass.position(row);
  const size_t layer = attention.plan.index;
  out.window.clear();
  out.global.clear();
  if (attention.plan.mode == LayerMode::kDraft) {
    find_draft_rows(attention, pass, window_rows, row, out);
    return;
  }
  const int64_t begin = std::max(state.window_begin(layer), position - state.layout().window + 1);
  for (int64_t p = begin; p <= position; ++p) {
    const bool is_here = p >= segment.position;
    out.window.push_back(is_here ? window_rows.row(segment.row_begin + static_cast<size_t>(p - segment.position)).data()
                                 : state.window(layer).row(p).data());
  }
  if (attention.plan.mode == LayerMode::kWindow) return;
  const std::span<const uint32_t> entries =
      pass.selection.entries.row(row).first(static_cast<size_t>(pass.selection.count[row]));
  for (const uint32_t entry : entries)
    out.global.push_back(state.entry(attention.plan.kv_slot, entry));
}

/// Head ranges per row: one when there are rows enough for all threads, else one for each thread.
size_t head_parts(const Attention& attention, size_t rows) {
  const size_t workers = attention.math.workers();
  const size_t wanted = rows >= workers ? 1 : workers;
  size_t parts = 1;
  while (parts < wanted && attention.config.heads % (2 * parts) == 0)
    parts *= 2;
  return parts;
}

void sparse_attention(const Attention& attention, const ForwardPass& pass, Span2d<const std::byte> window_rows,
                      Span2d<const float> q, Span2d<float> out) {
  const Math& math = attention.math;
  const AttentionConfig& config = attention.config;
  const KvLayout& layout = pass.segments.front().state->layout();
  const size_t parts = head_parts(attention, pass.rows);
  const size_t heads = config.heads / parts;
  const Span2d<float> scratch =
      pass.arena->matrix(math.workers(), kernels::attention_scratch_floats(heads, config.head_dim));
  std::vector<RowPointers> pointers(math.workers());
  math.for_rows(pass.rows * parts, [&](size_t job, size_t worker) {
    const size_t row = job / parts;
    const size_t first_head = job % parts * heads;
    RowPointers& rows = pointers[worker];
    find_rows(attention, pass, window_rows, row, rows);
    kernels::AttentionArgs args;
    args.q = q.row(row).data() + first_head * config.head_dim;
    args.heads = heads;
    args.width = config.head_dim;
    args.window = {rows.window.data(), rows.window.size(), layout.window_format};
    if (!rows.global.empty()) {
      args.global = {rows.global.data(), rows.global.size(), layout.sources[attention.plan.kv_slot].entry_format};
    }
    args.sink = attention.weights.sink + first_head;
    args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
    args.round_probabilities = math.numerics().round_to_bf16;
    args.out = out.row(row).data() + first_head * config.head_dim;
    args.scratch = scratch.row(worker).data();
    math.kernels().sparse_attention(args);
  });
}

/// y = wo_b(grid(concat_g wo_a[g] o_g)): each group of heads has its own low-rank projection.
void project_output(const Attention& attention, const ForwardPass& pass, Span2d<const float> o, Span2d<float> y) {
  const Math& math = attention.math;
  const AttentionWeights& weights = attention.weights;
  const size_t groups = attention.config.groups;
  const size_t rank = weights.wo_a.out / groups;
  const Span2d<float> low = pass.arena->matrix(pass.rows, weights.wo_a.out);
  std::vector<LinearJob> jobs;
  for (size_t group = 0; group < groups; ++group) {
    jobs.push_back({weights.wo_a.rows(group * rank, rank), o.col_range(group * weights.wo_a.in, weights.wo_a.in),
                    low.col_range(group * rank, rank)});
  }
  math.linear_all(jobs);
  math.quantise_rows(low);
  math.linear(weights.wo_b, low, y);
}

/// Puts the last rows of each segment into its ring, as many as the ring holds.
void commit_window_rows(const Attention& attention, const ForwardPass& pass, Span2d<const std::byte> window_rows) {
  for (const PassSegment& segment : pass.segments) {
    const auto kept = std::min(segment.rows, static_cast<size_t>(segment.state->layout().ring_rows()));
    for (size_t i = segment.rows - kept; i < segment.rows; ++i) {
      std::ranges::copy(
          window_rows.row(segment.row_begin + i),
          segment.state->window(attention.plan.index).row(segment.position + static_cast<int64_t>(i)).begin());
    }
  }
}

}  // namespace

void write_layer_global_kv(const Attention& attention, const ForwardPass& pass, Span2d<const float> x) {
  write_global_kv({attention.math, *attention.weights.compressor, *attention.weights.index_key, attention.plan,
                   attention.ropes.global, attention.config.norm_eps, attention.config.rope_dim,
                   attention.config.unscaled_rope_position},
                  pass, x);
}

void write_window_rows(const Attention& attention, const ForwardPass& pass, Span2d<const float> x) {
  const Arena::Scope scope(*pass.arena);
  const Span2d<float> kv = pass.arena->matrix(pass.rows, attention.config.head_dim);
  attention.math.linear(attention.weights.wkv, x, kv);
  commit_window_rows(attention, pass, make_window_rows(attention, layer_angles(attention, pass), pass, kv));
}

void attend(const Attention& attention, ForwardPass& pass, Span2d<const float> x, Span2d<float> y) {
  const Arena::Scope scope(*pass.arena);
  Arena& arena = *pass.arena;
  const Math& math = attention.math;
  const AttentionWeights& weights = attention.weights;
  const Angles angles = layer_angles(attention, pass);

  const Span2d<float> x_grid = arena.matrix(pass.rows, x.cols);
  math.quantise_rows(x, x_grid);

  const Span2d<float> query_latent = arena.matrix(pass.rows, weights.wq_a.out);
  const Span2d<float> kv = arena.matrix(pass.rows, attention.config.head_dim);
  const std::array<LinearJob, 2> jobs{LinearJob{weights.wq_a, x_grid, query_latent},
                                      LinearJob{weights.wkv, x_grid, kv}};
  math.linear_all(jobs);
  math.rms_norm_rows(query_latent, weights.q_norm, attention.config.norm_eps, query_latent);
  math.quantise_rows(query_latent);

  const Span2d<std::byte> window_rows = make_window_rows(attention, angles, pass, kv);
  if (weights.index_query) {
    select_entries(
        {math, *weights.index_query, attention.plan, attention.config.index_heads, attention.config.index_head_dim,
         attention.config.rope_dim, attention.config.index_topk, attention.config.candidates},
        pass, query_latent, x);
  }

  const Span2d<float> q = arena.matrix(pass.rows, weights.wq_b.out);
  math.linear(weights.wq_b, query_latent, q);
  math.for_rows(pass.rows, [&](size_t row, size_t) { rotate_heads(attention, angles, row, q.row(row), 1.0F); });
  const Span2d<float> o = arena.matrix(pass.rows, weights.wq_b.out);
  sparse_attention(attention, pass, window_rows, q, o);
  math.for_rows(pass.rows, [&](size_t row, size_t) {
    math.round(o.row(row));
    rotate_heads(attention, angles, row, o.row(row), -1.0F);
  });
  project_output(attention, pass, o, y);
  if (attention.plan.mode != LayerMode::kDraft) commit_window_rows(attention, pass, window_rows);
}

}  // namespace tidepool
