#include "model/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"

namespace tidepool {

namespace {

/// One use of an expert by a row.
struct Assignment {
  size_t row;
  float weight;
};

/// The rows of each expert, in ascending order of rows.
using ExpertRows = std::vector<std::vector<Assignment>>;

void record_routing(const ForwardPass& pass, size_t layer, size_t row, std::span<const int32_t> chosen,
                    std::span<const float> weights, float margin) {
  const auto id = static_cast<int64_t>(layer);
  const int64_t position = pass.position(row);
  pass.probe->record_ints("route_idx", id, position, std::vector<int64_t>(chosen.begin(), chosen.end()));
  pass.probe->record("route_w", id, position, Span2d<const float>(weights.data(), 1, weights.size()));
  pass.probe->record("route_margin", id, position, Span2d<const float>(&margin, 1, 1));
}

ExpertRows route(const Math& math, const MoeConfig& config, const MoeWeights& weights, size_t layer,
                 const ForwardPass& pass, Span2d<const float> x) {
  const Arena::Scope scope(*pass.arena);
  const Span2d<float> scores = pass.arena->matrix(pass.rows, weights.gate.out);
  math.linear_unrounded(weights.gate, x, scores);
  const size_t k = config.experts_per_token;
  const Span2d<int32_t> chosen(pass.arena->take<int32_t>(pass.rows * k).data(), pass.rows, k);
  const Span2d<float> chosen_weights = pass.arena->matrix(pass.rows, k);
  const std::span<float> margins = pass.arena->take<float>(pass.rows);
  math.for_rows(pass.rows, [&](size_t row, size_t) {
    router_scores(scores.row(row));
    const bool is_image =
        weights.bias_vl != nullptr && pass.token(row).is_image && config.image_fault != ImageFault::kTextRouting;
    margins[row] = route_row(config, scores.row(row), is_image ? weights.bias_vl : weights.bias, chosen.row(row),
                             chosen_weights.row(row));
  });
  ExpertRows result(weights.experts.size());
  for (size_t row = 0; row < pass.rows; ++row) {
    for (size_t i = 0; i < k; ++i)
      result[static_cast<size_t>(chosen.at(row, i))].push_back({row, chosen_weights.at(row, i)});
    if (pass.probe != nullptr) record_routing(pass, layer, row, chosen.row(row), chosen_weights.row(row), margins[row]);
  }
  return result;
}

/// An expert at work: the rows that use it, their inputs gathered, and room for what it makes of them.
struct ExpertTask {
  const ExpertWeights* expert;
  std::span<const Assignment> rows;
  Span2d<const float> x;  ///< [rows, d], on the activation grid
  Span2d<float> gate;     ///< [rows, inner]; becomes the hidden values, on the activation grid
  Span2d<float> up;       ///< [rows, inner]
};

/// Outputs a thread computes at a time: a multiple of the FP8 scale tile and of the activation grid's block, and so
/// many that all threads have several tiles. Each tile of few rows puts the rows in its kernel's order anew, as do some
/// kernels with many rows: larger ones do it less often. Of many rows 48 outputs are decoded at once.
size_t outputs_per_tile(size_t threads, size_t outputs, size_t rows) {
  constexpr size_t kManyRows = 64;
  constexpr size_t kTilesPerThread = 8;
  const size_t unit = rows < kManyRows ? 32 : 96;
  const size_t largest = rows < kManyRows ? 256 : 288;
  return std::clamp(outputs / (kTilesPerThread * threads) / unit * unit, std::max<size_t>(unit, 64), largest);
}

size_t tile_count(size_t outputs, size_t tile) {
  return (outputs + tile - 1) / tile;
}

ExpertTask make_task(const ExpertWeights& expert, std::span<const Assignment> rows, Arena& arena,
                     Span2d<const float> x) {
  return {&expert, rows, x, arena.matrix(rows.size(), expert.w1.out), arena.matrix(rows.size(), expert.w1.out)};
}

/// The inputs of the product job_of(task) of each task, packed once for all its tiles.
template <typename JobOf>
PackedInputs pack_inputs(const Math& math, std::span<const ExpertTask> tasks, Arena& arena, const JobOf& job_of) {
  std::vector<LinearJob> jobs(tasks.size());
  std::ranges::transform(tasks, jobs.begin(), job_of);
  return math.pack_inputs(jobs, arena);
}

/// Outputs [begin, end).
struct OutputRange {
  size_t begin;
  size_t end;

  [[nodiscard]] size_t size() const { return end - begin; }
};

/// hidden = grid(silu(w1 x) * (w3 x) * weight) for outputs of one expert. Each 32 outputs are quantised by themselves,
/// so the whole chain is done while they are in cache.
void run_gate_up(const Math& math, const MoeConfig& config, const ExpertTask& task, const std::byte* packed_x,
                 OutputRange outputs) {
  const ExpertWeights& expert = *task.expert;
  const bool is_alike = expert.w3.format == expert.w1.format;
  linear_range(math.kernels(), {expert.w1, task.x, task.gate, packed_x}, outputs.begin, outputs.end);
  linear_range(math.kernels(), {expert.w3, task.x, task.up, is_alike ? packed_x : nullptr}, outputs.begin, outputs.end);
  for (size_t i = 0; i < task.rows.size(); ++i) {
    const std::span<float> gate = task.gate.row(i).subspan(outputs.begin, outputs.size());
    const std::span<float> up = task.up.row(i).subspan(outputs.begin, outputs.size());
    math.round(gate);
    math.round(up);
    math.kernels().swiglu(gate.data(), up.data(), gate.size(), config.swiglu_limit, task.rows[i].weight, gate.data());
    math.round(gate);
    math.quantise(gate);
  }
}

/// The second half of all experts: their hidden values, packed, and the tasks they are of.
struct DownTasks {
  std::span<const ExpertTask> tasks;
  const PackedInputs& hidden;
};

/// y = sum of w2 hidden over all experts for some outputs: each row adds its experts in the order of the tasks,
/// whatever else is in the pass. `scratch` [most rows of a task, outputs].
void run_down(const Math& math, const DownTasks& down, OutputRange outputs, Span2d<float> scratch, Span2d<float> y) {
  for (size_t row = 0; row < y.rows; ++row)
    std::ranges::fill(y.row(row).subspan(outputs.begin, outputs.size()), 0.0F);
  for (size_t t = 0; t < down.tasks.size(); ++t) {
    const ExpertTask& task = down.tasks[t];
    const Span2d<float> out = scratch.row_range(0, task.rows.size()).col_range(0, outputs.size());
    linear_range(math.kernels(),
                 {task.expert->w2.rows(outputs.begin, outputs.size()), task.gate, out, down.hidden.of(t)}, 0,
                 outputs.size());
    for (size_t i = 0; i < task.rows.size(); ++i) {
      const std::span<float> values = out.row(i);
      math.round(values);
      math.kernels().add(y.row(task.rows[i].row).data() + outputs.begin, values.data(), values.size());
    }
  }
  for (size_t row = 0; row < y.rows; ++row)
    math.round(y.row(row).subspan(outputs.begin, outputs.size()));
}

/// Both halves of all experts, each half in one go over all threads.
void run_experts(const Math& math, const MoeConfig& config, std::span<const ExpertTask> tasks, Arena& arena,
                 Span2d<float> y) {
  const size_t tile_outputs = outputs_per_tile(math.workers(), y.cols, y.rows);
  const auto tile_of = [&](size_t tile, size_t outputs) {
    return OutputRange{tile * tile_outputs, std::min((tile + 1) * tile_outputs, outputs)};
  };
  const size_t inner = tasks.front().gate.cols;
  {
    const Arena::Scope scope(arena);
    const PackedInputs inputs = pack_inputs(math, tasks, arena, [](const ExpertTask& task) {
      return LinearJob{task.expert->w1, task.x, {}};
    });
    const size_t tiles = tile_count(inner, tile_outputs);
    math.for_rows(tasks.size() * tiles, [&](size_t job, size_t) {
      const size_t t = job / tiles;
      run_gate_up(math, config, tasks[t], inputs.of(t), tile_of(job % tiles, inner));
    });
  }
  const PackedInputs hidden = pack_inputs(math, tasks, arena, [](const ExpertTask& task) {
    return LinearJob{task.expert->w2, task.gate, {}};
  });
  size_t most_rows = 0;
  for (const ExpertTask& task : tasks)
    most_rows = std::max(most_rows, task.rows.size());
  const Span2d<float> scratch = arena.matrix(math.workers() * most_rows, tile_outputs);
  math.for_rows(tile_count(y.cols, tile_outputs), [&](size_t tile, size_t worker) {
    run_down(math, {tasks, hidden}, tile_of(tile, y.cols), scratch.row_range(worker * most_rows, most_rows), y);
  });
}

/// An order of all values, so that sorting by it is defined. NaN is below every number: top-k takes none either.
bool ranks_above(float a, float b) {
  return a > b || (std::isnan(b) && !std::isnan(a));
}

}  // namespace

void router_scores(std::span<float> logits) {
  for (float& value : logits) {
    // softplus; above 20 it equals its argument in binary32.
    const float softplus = value > 20.0F ? value : std::log1p(std::exp(value));
    value = std::sqrt(softplus);
  }
}

float route_row(const MoeConfig& config, std::span<const float> scores, const float* bias, std::span<int32_t> chosen,
                std::span<float> weights) {
  const size_t k = chosen.size();
  TIDEPOOL_CHECK(k <= scores.size(), "more experts per token than experts");
  std::vector<int32_t> order(scores.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = static_cast<int32_t>(i);
  const auto biased = [&](int32_t expert) { return scores[static_cast<size_t>(expert)] + bias[expert]; };
  const size_t looked_at = std::min(k + 1, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(looked_at), order.end(),
                    [&](int32_t a, int32_t b) {
                      if (ranks_above(biased(a), biased(b))) return true;
                      return !ranks_above(biased(b), biased(a)) && a < b;
                    });
  float sum = 0;
  for (size_t i = 0; i < k; ++i) {
    chosen[i] = order[i];
    weights[i] = scores[static_cast<size_t>(order[i])];
    sum += weights[i];
  }
  for (float& weight : weights) {
    if (config.norm_topk_prob) weight /= sum + 1e-20F;
    weight *= config.routed_scaling_factor;
  }
  if (looked_at == k) return std::numeric_limits<float>::infinity();
  return biased(order[k - 1]) - biased(order[k]);
}

void mixture_of_experts(const Math& math, const MoeConfig& config, const MoeWeights& weights, size_t layer,
                        const ForwardPass& pass, Span2d<const float> x, Span2d<float> y) {
  Arena& arena = *pass.arena;
  const ExpertRows rows_of = route(math, config, weights, layer, pass, x);
  const Arena::Scope scope(arena);
  const Span2d<float> grid = arena.matrix(x.rows, x.cols);  // shared by all experts
  math.quantise_rows(x, grid);

  std::vector<ExpertTask> tasks;
  std::vector<Span2d<float>> gathered;
  for (size_t expert = 0; expert < rows_of.size(); ++expert) {
    const std::vector<Assignment>& rows = rows_of[expert];
    if (rows.empty()) continue;
    gathered.push_back(arena.matrix(rows.size(), x.cols));
    tasks.push_back(make_task(weights.experts[expert], rows, arena, gathered.back()));
  }
  math.for_rows(gathered.size(), [&](size_t task, size_t) {
    for (size_t i = 0; i < gathered[task].rows; ++i)
      std::ranges::copy(grid.row(tasks[task].rows[i].row), gathered[task].row(i).begin());
  });
  std::vector<Assignment> all_rows(x.rows);
  for (size_t row = 0; row < x.rows; ++row)
    all_rows[row] = {row, 1.0F};
  tasks.push_back(make_task(weights.shared, all_rows, arena, grid));
  run_experts(math, config, tasks, arena, y);
}

}  // namespace tidepool
