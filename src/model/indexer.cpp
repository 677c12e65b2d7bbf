#include "model/indexer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "formats/row_format.h"
#include "kernels/top_k.h"

namespace tidepool {

namespace {

/// Index queries on the FP4 grid and the weight of each head.
struct Queries {
  Span2d<float> q;        ///< [rows, heads * width]
  Span2d<float> weights;  ///< [rows, heads]
};

/// Scratch of one worker.
struct Workspace {
  std::span<float> scores;  ///< of every visible entry, or of the candidates one after the other
  std::span<float> kernel;  ///< of the score kernel
  std::vector<kernels::KeyRun> runs;
  std::vector<float> blocks;
};

int64_t visible_entries(const ForwardPass& pass, size_t row, int64_t ratio) {
  return (pass.position(row) + 1) / ratio;
}

/// Whether the row may choose among the blocks of a candidate pool only.
bool has_candidates(const Indexer& indexer, const ForwardPass& pass, size_t row) {
  return indexer.plan.uses_candidates && pass.candidates.count[row] >= 0;
}

std::span<const uint32_t> candidate_blocks(const ForwardPass& pass, size_t row) {
  return pass.candidates.blocks.row(row).first(static_cast<size_t>(pass.candidates.count[row]));
}

Queries make_queries(const Indexer& indexer, const ForwardPass& pass, Span2d<const float> query_latent,
                     Span2d<const float> x) {
  const Math& math = indexer.math;
  Arena& arena = *pass.arena;
  const Queries queries{arena.matrix(pass.rows, indexer.heads * indexer.width), arena.matrix(pass.rows, indexer.heads)};
  math.linear(indexer.weights.wq_b, query_latent, queries.q);
  math.linear(indexer.weights.weights_proj, x, queries.weights);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(indexer.width)) /
                                        std::sqrt(static_cast<double>(indexer.heads)));
  const RowFormat grid = pass.segments.front().state->layout().sources[indexer.plan.kv_slot].key_format;
  const size_t packed_bytes = row_bytes(grid, indexer.width);
  const Span2d<std::byte> packed(arena.take<std::byte>(math.workers() * packed_bytes).data(), math.workers(),
                                 packed_bytes);
  math.for_rows(pass.rows, [&](size_t row, size_t worker) {
    const size_t pairs = pass.global_cos.cols;
    for (size_t head = 0; head < indexer.heads; ++head) {
      const std::span<float> q = queries.q.row(row).subspan(head * indexer.width, indexer.width);
      math.kernels().rope(q.data() + indexer.width - indexer.rope_dim, pass.global_cos.row(row).data(),
                          pass.global_sin.row(row).data(), pairs, 1.0F);
      math.round(q);
      pack_row(grid, q, packed.row(worker));
      unpack_row(grid, packed.row(worker), q);
    }
    for (float& weight : queries.weights.row(row))
      weight *= scale;
    math.round(queries.weights.row(row));
  });
  return queries;
}

/// Adds where the keys of entries [begin, end) lie.
void add_runs(const Indexer& indexer, const ForwardPass& pass, size_t row, int64_t begin, int64_t end,
              std::vector<kernels::KeyRun>& runs) {
  const SequenceState& state = *pass.segment(row).state;
  while (begin < end) {
    runs.push_back(state.key_run(indexer.plan.kv_slot, begin, end - begin));
    begin += static_cast<int64_t>(runs.back().count);
  }
}

/// Where the keys lie that the row is scored against: those of its candidate blocks, or of every visible entry.
void find_runs(const Indexer& indexer, const ForwardPass& pass, size_t row, std::vector<kernels::KeyRun>& runs) {
  runs.clear();
  const int64_t visible = visible_entries(pass, row, indexer.plan.ratio);
  if (!has_candidates(indexer, pass, row)) return add_runs(indexer, pass, row, 0, visible, runs);
  const int64_t size = indexer.candidates.block_size;
  for (const uint32_t block : candidate_blocks(pass, row))
    add_runs(indexer, pass, row, block * size, std::min((block + 1) * size, visible), runs);
}

size_t key_count(std::span<const kernels::KeyRun> runs) {
  return std::transform_reduce(runs.begin(), runs.end(), size_t{0}, std::plus<>(),
                               [](const kernels::KeyRun& run) { return run.count; });
}

/// Scores of the keys of all runs, one after the other.
void score_runs(const Indexer& indexer, const ForwardPass& pass, const Queries& queries, size_t row,
                std::span<const kernels::KeyRun> runs, float* scores, std::span<float> scratch) {
  const KvSource& source = pass.segment(row).state->layout().sources[indexer.plan.kv_slot];
  kernels::IndexScoreArgs args;
  args.q = queries.q.row(row).data();
  args.weights = queries.weights.row(row).data();
  args.heads = indexer.heads;
  args.width = indexer.width;
  args.runs = runs.data();
  args.run_count = runs.size();
  args.key_stride = source.key_bytes;
  args.format = source.key_format;
  args.round = indexer.math.numerics().round_to_bf16;
  args.scores = scores;
  args.scratch = scratch.data();
  indexer.math.kernels().index_scores(args);
}

void select_all(ForwardPass& pass, size_t row, int64_t visible) {
  const std::span<uint32_t> entries = pass.selection.entries.row(row).first(static_cast<size_t>(visible));
  std::iota(entries.begin(), entries.end(), 0U);
  pass.selection.count[row] = static_cast<int32_t>(visible);
}

/// The row's selection are the `kept` chosen places among the scores.
void keep_chosen(const Indexer& indexer, ForwardPass& pass, size_t row, size_t kept) {
  pass.selection.count[row] = static_cast<int32_t>(kept);
  if (!has_candidates(indexer, pass, row)) return;
  // Scores were those of candidate blocks one after the other. All blocks but the last are full, so a place maps back
  // by division.
  const std::span<const uint32_t> blocks = candidate_blocks(pass, row);
  const auto block_size = static_cast<uint32_t>(indexer.candidates.block_size);
  for (uint32_t& place : pass.selection.entries.row(row).first(kept))
    place = blocks[place / block_size] * block_size + place % block_size;
}

void make_candidates(const Indexer& indexer, ForwardPass& pass, size_t row, std::span<const float> scores,
                     Workspace& work) {
  if (!indexer.plan.makes_candidates) return;
  pass.candidates.count[row] = choose_candidate_blocks(indexer.candidates, scores, pass.candidates.blocks.row(row),
                                                       work.blocks, indexer.math.kernels());
}

/// Everything visible fits into the selection, and no candidate pool is to be made or kept to.
bool is_trivial(const Indexer& indexer, const ForwardPass& pass, size_t row) {
  const int64_t visible = visible_entries(pass, row, indexer.plan.ratio);
  const CandidatePoolConfig& pool = indexer.candidates;
  const bool makes_pool = indexer.plan.makes_candidates && visible > pool.blocks_max * pool.block_size;
  return visible <= static_cast<int64_t>(indexer.topk) && !makes_pool && !has_candidates(indexer, pass, row);
}

/// Runs [begin, end) and where their scores begin.
struct ScoreJob {
  size_t begin;
  size_t end;
  size_t first_score;
};

/// Runs in jobs of some thousand keys: some hundred KB of released ones, enough work for one hand-off.
std::vector<ScoreJob> share_out(std::span<const kernels::KeyRun> runs) {
  constexpr size_t kKeysPerJob = 4096;
  std::vector<ScoreJob> jobs;
  size_t keys = 0;
  for (size_t run = 0; run < runs.size(); ++run) {
    if (jobs.empty() || keys - jobs.back().first_score >= kKeysPerJob) jobs.push_back({run, run, keys});
    jobs.back().end = run + 1;
    keys += runs[run].count;
  }
  return jobs;
}

/// A row when there are fewer of them than threads: all threads share it.
void select_row_together(const Indexer& indexer, ForwardPass& pass, const Queries& queries, size_t row,
                         std::span<Workspace> work) {
  std::vector<kernels::KeyRun>& runs = work.front().runs;
  find_runs(indexer, pass, row, runs);
  const std::span<float> scores = work.front().scores.first(key_count(runs));
  const std::vector<ScoreJob> jobs = share_out(runs);
  indexer.math.for_rows(jobs.size(), [&](size_t index, size_t worker) {
    const ScoreJob& job = jobs[index];
    score_runs(indexer, pass, queries, row, std::span(runs).subspan(job.begin, job.end - job.begin),
               scores.data() + job.first_score, work[worker].kernel);
  });
  make_candidates(indexer, pass, row, scores, work.front());
  const Arena::Scope scope(*pass.arena);
  const size_t places = kernels::shared_top_k_scratch(indexer.math.workers(), indexer.topk);
  const size_t kept = kernels::select_top_k(indexer.math.pool(),
                                            {.scores = scores,
                                             .k = indexer.topk,
                                             .indices = pass.selection.entries.row(row),
                                             .places = pass.arena->take<uint32_t>(places),
                                             .values = pass.arena->take<float>(places)},
                                            indexer.math.kernels());
  keep_chosen(indexer, pass, row, kept);
}

void select_row_alone(const Indexer& indexer, ForwardPass& pass, const Queries& queries, size_t row, Workspace& work) {
  find_runs(indexer, pass, row, work.runs);
  const std::span<float> scores = work.scores.first(key_count(work.runs));
  score_runs(indexer, pass, queries, row, work.runs, scores.data(), work.kernel);
  make_candidates(indexer, pass, row, scores, work);
  const size_t kept =
      kernels::select_top_k(scores, indexer.topk, pass.selection.entries.row(row), indexer.math.kernels());
  keep_chosen(indexer, pass, row, kept);
}

std::vector<Workspace> make_workspaces(const Indexer& indexer, const ForwardPass& pass, size_t entries) {
  std::vector<Workspace> result(indexer.math.workers());
  for (Workspace& work : result) {
    work.scores = pass.arena->take<float>(entries);
    work.kernel = pass.arena->take<float>(kernels::index_scratch_floats(indexer.width));
  }
  return result;
}

/// Gap between the worst chosen and the best left-out score: 0 for a tie, +inf when nothing was left out.
float selection_margin(std::span<const float> scores, std::span<const uint32_t> chosen) {
  float worst = std::numeric_limits<float>::infinity();
  float best_left = -std::numeric_limits<float>::infinity();
  size_t next = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const bool is_chosen = next < chosen.size() && static_cast<size_t>(chosen[next]) == i;
    if (is_chosen) ++next;
    if (is_chosen) worst = std::min(worst, scores[i]);
    if (!is_chosen) best_left = std::max(best_left, scores[i]);
  }
  return std::isinf(best_left) ? std::numeric_limits<float>::infinity() : worst - best_left;
}

/// 1 for each entry of a kept block, as the reference's mask has it: a block that is only begun counts whole.
std::vector<int64_t> candidate_mask(const Indexer& indexer, const ForwardPass& pass, size_t row) {
  const int64_t size = indexer.candidates.block_size;
  const int64_t visible = visible_entries(pass, row, indexer.plan.ratio);
  const int64_t entries = pass.segment(row).state->length() / indexer.plan.ratio;
  const bool is_filtered = pass.candidates.count[row] >= 0;
  std::vector<int64_t> mask(static_cast<size_t>(entries), 0);
  const auto keep = [&](int64_t begin, int64_t end) {
    std::fill(mask.begin() + begin, mask.begin() + std::min(end, entries), 1);
  };
  if (!is_filtered) keep(0, size > 0 ? (visible + size - 1) / size * size : visible);
  for (int32_t i = 0; i < pass.candidates.count[row]; ++i) {
    const int64_t begin = pass.candidates.blocks.row(row)[static_cast<size_t>(i)] * size;
    keep(begin, begin + size);
  }
  return mask;
}

void record_selection(const Indexer& indexer, const ForwardPass& pass, const Queries& queries, size_t row,
                      Workspace& work) {
  const auto layer = static_cast<int64_t>(indexer.plan.index);
  const int64_t position = pass.position(row);
  const std::span<float> scores =
      work.scores.first(static_cast<size_t>(visible_entries(pass, row, indexer.plan.ratio)));
  work.runs.clear();
  add_runs(indexer, pass, row, 0, static_cast<int64_t>(scores.size()), work.runs);
  score_runs(indexer, pass, queries, row, work.runs, scores.data(), work.kernel);
  pass.probe->record("index_score", layer, position, Span2d<const float>(scores.data(), 1, scores.size()));

  const std::vector<int64_t> in_pool = candidate_mask(indexer, pass, row);
  if (indexer.plan.makes_candidates) pass.probe->record_ints("candidates", layer, position, in_pool);
  if (indexer.plan.uses_candidates) {
    for (size_t i = 0; i < scores.size(); ++i) {
      if (in_pool[i] == 0) scores[i] = -std::numeric_limits<float>::infinity();
    }
  }
  const std::span<const uint32_t> chosen =
      pass.selection.entries.row(row).first(static_cast<size_t>(pass.selection.count[row]));
  const float margin = selection_margin(scores, chosen);
  pass.probe->record("topk_margin", layer, position, Span2d<const float>(&margin, 1, 1));
}

void record_topk(const Indexer& indexer, const ForwardPass& pass) {
  for (size_t row = 0; row < pass.rows; ++row) {
    const std::span<const uint32_t> chosen =
        pass.selection.entries.row(row).first(static_cast<size_t>(pass.selection.count[row]));
    pass.probe->record_ints("topk", static_cast<int64_t>(indexer.plan.index), pass.position(row),
                            std::vector<int64_t>(chosen.begin(), chosen.end()));
  }
}

}  // namespace

void select_entries(const Indexer& indexer, ForwardPass& pass, Span2d<const float> query_latent,
                    Span2d<const float> x) {
  const Arena::Scope scope(*pass.arena);
  const bool wants_scores = pass.probe != nullptr && pass.probe->wants("index_score");
  size_t scored_rows = 0;
  size_t largest = 0;
  for (size_t row = 0; row < pass.rows; ++row) {
    const int64_t visible = visible_entries(pass, row, indexer.plan.ratio);
    if (indexer.plan.makes_candidates) pass.candidates.count[row] = -1;
    if (is_trivial(indexer, pass, row)) select_all(pass, row, visible);
    if (!is_trivial(indexer, pass, row)) ++scored_rows;
    largest = std::max(largest, static_cast<size_t>(visible));
  }
  if (scored_rows > 0 || wants_scores) {
    const Queries queries = make_queries(indexer, pass, query_latent, x);
    std::vector<Workspace> work = make_workspaces(indexer, pass, largest);
    if (scored_rows < indexer.math.workers()) {
      for (size_t row = 0; row < pass.rows; ++row) {
        if (!is_trivial(indexer, pass, row)) select_row_together(indexer, pass, queries, row, work);
      }
    } else {
      indexer.math.for_rows(pass.rows, [&](size_t row, size_t worker) {
        if (!is_trivial(indexer, pass, row)) select_row_alone(indexer, pass, queries, row, work[worker]);
      });
    }
    for (size_t row = 0; wants_scores && row < pass.rows; ++row) {
      record_selection(indexer, pass, queries, row, work.front());
    }
  }
  if (pass.probe != nullptr) record_topk(indexer, pass);
}

}  // namespace tidepool
