#include "train/attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "train/compressor.h"

namespace tidepool {

namespace {

/// How heads of a layer's rows are turned.
template <typename Real>
Rotation<Real> turns_of(const SharedAttention<Real>& shared, const LayerPlan& plan, size_t head_width) {
  const AttentionModel<Real>& model = *shared.model;
  const bool is_window = plan.mode == LayerMode::kWindow;
  return {.table = is_window ? &model.window_rotation : &model.global_rotation,
          .positions = shared.half(plan).positions,
          .head_width = head_width};
}

/// x * factor where it lies.
template <typename Real>
void scale_in_place(Tape<Real>& tape, const Value<Real>& x, Real factor) {
  const auto scale = [factor](const Span2d<Real>& values) {
    for (size_t row = 0; row < values.rows; ++row) {
      for (Real& value : values.row(row))
        value *= factor;
    }
  };
  scale(x.data);
  if (x.wants_grad()) tape.on_backward([x, scale] { scale(x.grad); });
}

/// What the layer's indexer scores with. No gradient goes back into what it is made of. (docs/model.md 2.4)
template <typename Real>
IndexInputs<Real> make_index_inputs(Tape<Real>& tape, const AttentionLayer<Real>& layer, const Value<Real>& x,
                                    const Value<Real>& latent, SharedAttention<Real>& shared) {
  const AttentionModel<Real>& model = *shared.model;
  const auto width = static_cast<size_t>(model.config.index_head_dim);
  const Value<Real> q = linear(tape, model.qat, detached(latent), *layer.parameters.index_wq_b);
  rotate_in_place(tape, q, turns_of(shared, layer.plan, width));
  const Value<Real> weights = linear(tape, model.qat, detached(x), *layer.parameters.index_weights_proj);
  // Both factors in one binary32 number, as the engine has it.
  const auto scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)) / std::sqrt(static_cast<double>(weights.cols())));
  scale_in_place(tape, weights, static_cast<Real>(scale));
  return {.q = quantised_if(tape, model.qat.index, q, RowFormat::kFp4Block32),
          .weights = weights,
          .keys = shared.sources[layer.plan.kv_slot].keys};
}

template <typename Real>
SelectionRule make_rule(const SharedAttention<Real>& shared, const LayerPlan& plan) {
  const ModelConfig& config = shared.model->config;
  SelectionRule rule;
  rule.topk = static_cast<size_t>(config.index_topk);
  rule.pool = {.block_size = config.candidate_block_size, .blocks_max = config.candidate_topk_blocks};
  if (plan.makes_candidates) rule.pool_use = PoolUse::kMakes;
  if (plan.uses_candidates) rule.pool_use = PoolUse::kKeepsTo;
  rule.exploration = shared.index_training.exploration;
  // Layers draw apart.
  rule.seed = shared.index_training.seed * 0x9e3779b97f4a7c15U + plan.index;
  return rule;
}

template <typename Real>
void choose_entries(Tape<Real>& tape, const AttentionLayer<Real>& layer, const Value<Real>& x,
                    const Value<Real>& latent, SharedAttention<Real>& shared) {
  const IndexInputs<Real> inputs = make_index_inputs(tape, layer, x, latent, shared);
  const SelectedEntries<Real> selection =
      select_entries(tape, inputs, shared.half(layer.plan).rows, shared.sources[layer.plan.kv_slot].rows,
                     make_rule(shared, layer.plan), shared.pool);
  shared.chosen.push_back({layer.plan.index, inputs, selection});
}

/// Rows that the window of each row holds: those of its sample among the half's rows.
std::vector<RowRange> window_ranges(const BatchRows& rows, size_t window) {
  std::vector<RowRange> ranges;
  ranges.reserve(rows.rows);
  for (const SampleRows& sample : rows.samples) {
    for (size_t i = 0; i < sample.count; ++i) {
      const size_t first = i < window ? 0 : i - window + 1;
      ranges.push_back({.begin = sample.begin + first, .end = sample.begin + i + 1});
    }
  }
  return ranges;
}

template <typename Real>
void fill_half(typename SharedAttention<Real>::Half& half, size_t window) {
  half.positions = positions_of(half.rows);
  half.windows = window_ranges(half.rows, window);
}

size_t longest_sample(const TokenBatch& batch) {
  size_t longest = 0;
  for (const TokenBatch::Segment& segment : batch.segments)
    longest = std::max(longest, segment.count);
  return longest;
}

}  // namespace

template <typename Real>
SharedAttention<Real>::SharedAttention(AttentionModel<Real>& shared_model, const TokenBatch& batch,
                                       const IndexTraining& training, size_t window)
    : model(&shared_model), index_training(training) {
  if (window == 0) window = static_cast<size_t>(model->config.sliding_window);
  encoder.rows = encoder_rows(batch);
  decoder.rows = decoder_rows(batch);
  fill_half<Real>(encoder, window);
  fill_half<Real>(decoder, window);
  for (const size_t layer : model->table.kv_source_layers) {
    Source& source = sources.emplace_back();
    source.rows = entry_rows(batch, static_cast<size_t>(model->table.layers[layer].ratio));
    source.positions.reserve(source.rows.rows);
    for (const EntryRows::Sample& sample : source.rows.samples) {
      for (size_t j = 0; j < sample.count; ++j)
        source.positions.push_back(static_cast<uint32_t>(j * source.rows.ratio));
    }
  }
  model->window_rotation.extend(longest_sample(batch));
  model->global_rotation.extend(longest_sample(batch));
}

template <typename Real>
void make_global_kv(Tape<Real>& tape, const AttentionLayer<Real>& layer, const Value<Real>& x,
                    SharedAttention<Real>& shared) {
  const AttentionModel<Real>& model = *shared.model;
  const AttentionParameters<Real>& parameters = layer.parameters;
  typename SharedAttention<Real>::Source& source = shared.sources[layer.plan.kv_slot];
  TIDEPOOL_CHECK(x.rows() == shared.encoder.rows.rows, "global KV is made of all rows");
  Value<Real> latent = linear(tape, model.qat, x, *parameters.compressor_wkv);
  if (source.rows.ratio > 1) {
    const Value<Real> gate = linear(tape, model.qat, x, *parameters.compressor_wgate);
    latent =
        pool_groups<Real>(tape, {.kv = latent, .gate = gate, .rows = &shared.encoder.rows, .entries = &source.rows});
  }
  latent = released_norm(tape, model, latent, *parameters.compressor_norm);
  // The index key comes from the latent as it is before rotation, and gives it no gradient.
  const Value<Real> keys = released_norm(tape, model, linear(tape, model.qat, detached(latent), *parameters.index_wk),
                                         *parameters.index_k_norm);
  Rotation<Real> rotation{.table = &model.global_rotation, .positions = source.positions, .head_width = latent.cols()};
  rotate_in_place(tape, latent, rotation);
  rotation.head_width = keys.cols();
  rotate_in_place(tape, keys, rotation);
  source.entries = quantised_if(tape, model.qat.entries, latent, RowFormat::kFp4Block16);
  source.keys = quantised_if(tape, model.qat.index, keys, RowFormat::kFp4Block32);
}

template <typename Real>
Value<Real> attention(Tape<Real>& tape, const AttentionLayer<Real>& layer, const Value<Real>& x,
                      SharedAttention<Real>& shared) {
  const AttentionModel<Real>& model = *shared.model;
  const AttentionParameters<Real>& parameters = layer.parameters;
  const typename SharedAttention<Real>::Half& half = shared.half(layer.plan);
  const Rotation<Real> turns = turns_of(shared, layer.plan, static_cast<size_t>(model.config.head_dim));
  TIDEPOOL_CHECK(x.rows() == half.rows.rows, "attention over the rows of its half");

  const Value<Real> latent = query_latent(tape, model, parameters, x);
  SparseAttention<Real> keys;
  keys.local = window_rows(tape, model, parameters, x, turns);
  keys.local_rows = half.windows;
  if (layer.plan.mode != LayerMode::kWindow) {
    keys.entries = shared.sources[layer.plan.kv_slot].entries;
    TIDEPOOL_CHECK(keys.entries.rows() == shared.sources[layer.plan.kv_slot].rows.rows, "global KV is made first");
    if (parameters.index_wq_b != nullptr) choose_entries(tape, layer, x, latent, shared);
    keys.selection = &shared.chosen.back().selection;
  }
  return attend(tape, model, parameters, latent, turns, keys);
}

template <typename Real>
Value<Real> take_decoder_rows(Tape<Real>& tape, const Value<Real>& x, const SharedAttention<Real>& shared) {
  if (shared.decoder.rows.rows == shared.encoder.rows.rows) return x;
  TIDEPOOL_CHECK(x.rows() == shared.encoder.rows.rows, "the decoder's rows are taken from all rows");
  std::vector<size_t> from;
  from.reserve(shared.decoder.rows.rows);
  for (size_t s = 0; s < shared.decoder.rows.samples.size(); ++s) {
    const SampleRows& sample = shared.decoder.rows.samples[s];
    for (size_t i = 0; i < sample.count; ++i)
      from.push_back(shared.encoder.rows.samples[s].begin + sample.position + i);
  }
  const Value<Real> y = tape.make(from.size(), x.cols());
  for (size_t row = 0; row < from.size(); ++row)
    std::ranges::copy(x.data.row(from[row]), y.data.row(row).begin());
  if (!x.wants_grad()) return y;
  tape.on_backward([x, y, from = std::move(from)] {
    for (size_t row = 0; row < from.size(); ++row)
      std::ranges::transform(x.grad.row(from[row]), y.grad.row(row), x.grad.row(from[row]).begin(), std::plus<>());
  });
  return y;
}

template <typename Real>
std::vector<IndexDivergence> index_losses(Tape<Real>& tape, const SharedAttention<Real>& shared, double weight) {
  std::vector<IndexDivergence> losses;
  losses.reserve(shared.chosen.size());
  for (const typename SharedAttention<Real>::Chosen& chosen : shared.chosen) {
    const auto rows = static_cast<double>(chosen.selection.counts.size());
    const double loss = index_loss<Real>(tape, {chosen.inputs, chosen.selection, static_cast<Real>(weight / rows)});
    losses.push_back({chosen.layer, loss / rows});
  }
  return losses;
}

#define TIDEPOOL_FOR_REAL(Real)                                                                                       \
  template struct SharedAttention<Real>;                                                                              \
  template void make_global_kv(Tape<Real>&, const AttentionLayer<Real>&, const Value<Real>&, SharedAttention<Real>&); \
  template Value<Real> attention(Tape<Real>&, const AttentionLayer<Real>&, const Value<Real>&,                        \
                                 SharedAttention<Real>&);                                                             \
  template Value<Real> take_decoder_rows(Tape<Real>&, const Value<Real>&, const SharedAttention<Real>&);              \
  template std::vector<IndexDivergence> index_losses(Tape<Real>&, const SharedAttention<Real>&, double)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
