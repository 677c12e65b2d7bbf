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
  ExpertRows result(weights.experts.size());
  std::vector<int32_t> chosen(config.experts_per_token);
  std::vector<float> chosen_weights(config.experts_per_token);
  for (size_t row = 0; row < pass.rows; ++row) {
    router_scores(scores.row(row));
    const bool is_image = pass.token(row).is_image && weights.bias_vl != nullptr;
    const float margin =
        route_row(config, scores.row(row), is_image ? weights.bias_vl : weights.bias, chosen, chosen_weights);
    for (size_t i = 0; i < chosen.size(); ++i) {
      result[static_cast<size_t>(chosen[i])].push_back({row, chosen_weights[i]});
    }
    if (pass.probe != nullptr) record_routing(pass, layer, row, chosen, chosen_weights, margin);
  }
  return result;
}

/// out [n, d] = w2 (silu(w1 x) * (w3 x) * weight) for n rows on the activation grid.
void run_expert(const Math& math, const MoeConfig& config, const ExpertWeights& expert, Arena& arena,
                std::span<const Assignment> rows, Span2d<const float> x, Span2d<float> out) {
  const Arena::Scope scope(arena);
  const Span2d<float> gate = arena.matrix(rows.size(), expert.w1.out);
  const Span2d<float> up = arena.matrix(rows.size(), expert.w3.out);
  math.linear(expert.w1, x, gate);
  math.linear(expert.w3, x, up);
  math.for_rows(rows.size(), [&](size_t i, size_t) {
    math.kernels().swiglu(gate.row(i).data(), up.row(i).data(), gate.cols, config.swiglu_limit, rows[i].weight,
                          gate.row(i).data());
    math.round(gate.row(i));
  });
  math.quantise_rows(gate);
  math.linear(expert.w2, gate, out);
}

void add_routed_experts(const Math& math, const MoeConfig& config, const MoeWeights& weights, const ExpertRows& rows_of,
                        Arena& arena, Span2d<const float> x, Span2d<float> y) {
  for (size_t expert = 0; expert < rows_of.size(); ++expert) {
    const std::vector<Assignment>& rows = rows_of[expert];
    if (rows.empty()) continue;
    const Arena::Scope scope(arena);
    const Span2d<float> gathered = arena.matrix(rows.size(), x.cols);
    const Span2d<float> out = arena.matrix(rows.size(), x.cols);
    for (size_t i = 0; i < rows.size(); ++i)
      std::ranges::copy(x.row(rows[i].row), gathered.row(i).begin());
    run_expert(math, config, weights.experts[expert], arena, rows, gathered, out);
    // Each row adds its experts in ascending order, whatever else is in the pass.
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::span<float> sum = y.row(rows[i].row);
      for (size_t c = 0; c < sum.size(); ++c)
        sum[c] += out.row(i)[c];
    }
  }
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
                    [&](int32_t a, int32_t b) { return biased(a) != biased(b) ? biased(a) > biased(b) : a < b; });
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
  for (size_t row = 0; row < x.rows; ++row) {
    std::ranges::copy(x.row(row), grid.row(row).begin());
    std::ranges::fill(y.row(row), 0.0F);
  }
  math.quantise_rows(grid);
  add_routed_experts(math, config, weights, rows_of, arena, grid, y);

  std::vector<Assignment> all_rows(x.rows);
  for (size_t row = 0; row < x.rows; ++row)
    all_rows[row] = {row, 1.0F};
  const Span2d<float> out = arena.matrix(x.rows, x.cols);
  run_expert(math, config, weights.shared, arena, all_rows, grid, out);
  for (size_t row = 0; row < x.rows; ++row) {
    for (size_t c = 0; c < x.cols; ++c)
      y.row(row)[c] += out.row(row)[c];
    math.round(y.row(row));
  }
}

}  // namespace tidepool
