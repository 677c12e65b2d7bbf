#include "train/draft.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>

#include "base/check.h"
#include "train/embedding.h"
#include "train/linear.h"
#include "train/matmul.h"
#include "train/random_stream.h"

namespace tidepool {

namespace {

/// Decay of the weights along a block, in drafts. (the published configuration)
constexpr double kWeightDecay = 4;

/// splitmix64: the same draws everywhere.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  size_t below(size_t count) {
    state_ += kSplitMixStep;
    return static_cast<size_t>(split_mix(state_) % count);
  }

 private:
  uint64_t state_;
};

/// A place for a block: row `row` of sample `sample` is the last one read.
struct BlockPlace {
  size_t sample = 0;
  size_t row = 0;
};

/// Everywhere where a block and the token behind it lie within the sample.
std::vector<BlockPlace> all_places(const BatchRows& decoder, size_t block_size) {
  std::vector<BlockPlace> places;
  places.reserve(decoder.rows);
  for (size_t s = 0; s < decoder.samples.size(); ++s) {
    const SampleRows& sample = decoder.samples[s];
    for (size_t i = 0; i + block_size + 1 < sample.count; ++i)
      places.push_back({s, sample.begin + i});
  }
  return places;
}

/// What all stages know about the rows of the blocks.
template <typename Real>
struct BlockRows {
  std::vector<uint32_t> positions;       ///< of block rows
  std::vector<uint32_t> main_positions;  ///< of the decoder's rows
  std::vector<RowRange> own;             ///< rows of its block, for each row
  SelectedEntries<Real> window;          ///< the decoder's rows that it sees, for each row
  std::vector<SampleRows> samples;       ///< all rows as one
};

template <typename Real>
BlockRows<Real> lay_out(Tape<Real>& tape, const AttentionModel<Real>& model, const BatchRows& decoder,
                        const DraftBatch& blocks) {
  const size_t size = blocks.tokens.size() / blocks.rows.size();
  const auto window = static_cast<size_t>(model.config.sliding_window);
  BlockRows<Real> result;
  result.main_positions = positions_of(decoder);
  result.positions.reserve(blocks.tokens.size());
  result.own.reserve(blocks.tokens.size());
  result.window.entries = {tape.template keep<uint32_t>(blocks.tokens.size() * window).data(), blocks.tokens.size(),
                           window};
  result.window.counts = tape.template keep<uint32_t>(blocks.tokens.size());
  result.samples = {{.begin = 0, .count = blocks.tokens.size()}};
  for (size_t block = 0; block < blocks.rows.size(); ++block) {
    const size_t last = blocks.rows[block];
    const auto sample = std::ranges::find_if(
        decoder.samples, [&](const SampleRows& s) { return last >= s.begin && last < s.begin + s.count; });
    TIDEPOOL_CHECK(sample != decoder.samples.end(), "a block behind a row of the decoder");
    const size_t count = std::min(window, last - sample->begin + 1);
    for (size_t i = 0; i < size; ++i) {
      const size_t row = block * size + i;
      result.positions.push_back(result.main_positions[last] + 1 + static_cast<uint32_t>(i));
      result.own.push_back({.begin = block * size, .end = (block + 1) * size});
      result.window.counts[row] = static_cast<uint32_t>(count);
      const std::span<uint32_t> entries = result.window.entries.row(row).first(count);
      std::iota(entries.begin(), entries.end(), static_cast<uint32_t>(last + 1 - count));
    }
  }
  return result;
}

template <typename Real>
Rotation<Real> turns_at(const AttentionModel<Real>& model, const std::vector<uint32_t>& positions) {
  return {.table = &model.window_rotation,
          .positions = positions,
          .head_width = static_cast<size_t>(model.config.head_dim)};
}

HyperConnectionShape stream_shape(const ModelConfig& config) {
  return {.streams = static_cast<size_t>(config.hc_mult),
          .iterations = static_cast<size_t>(config.hc_sinkhorn_iters),
          .eps = config.hc_eps,
          .norm_eps = config.rms_norm_eps};
}

/// X' = B X + C F(norm(A_prev X)).
template <typename Real>
void run_sublayer(Tape<Real>& tape, const AttentionModel<Real>& model, const HyperConnectionParameters<Real>& hc,
                  const Parameter<Real>& norm, Residual<Real>& streams,
                  const std::function<Value<Real>(const Value<Real>&)>& sublayer) {
  const HyperConnection<Real> mix = hyper_connection_mix(tape, stream_shape(model.config), hc, streams.stream);
  const Value<Real> x = released_norm(tape, model, collapse_streams(tape, streams.stream, streams.pre_mix), norm);
  streams = {expand_streams(tape, mix, streams.stream, sublayer(x)), mix.pre};
}

/// Columns of a and b side by side.
template <typename Real>
Value<Real> side_by_side(Tape<Real>& tape, const Value<Real>& a, const Value<Real>& b) {
  const Value<Real> both = tape.make(a.rows(), a.cols() + b.cols());
  const auto put = [both](const Value<Real>& part, size_t begin) {
    for (size_t row = 0; row < part.rows(); ++row)
      std::ranges::copy(part.data.row(row), both.data.row(row).subspan(begin).begin());
  };
  put(a, 0);
  put(b, a.cols());
  const auto take = [both](const Value<Real>& part, size_t begin) {
    if (!part.wants_grad()) return;
    for (size_t row = 0; row < part.rows(); ++row) {
      const std::span<const Real> gradient = both.grad.row(row).subspan(begin, part.cols());
      std::ranges::transform(part.grad.row(row), gradient, part.grad.row(row).begin(), std::plus<>());
    }
  };
  tape.on_backward([a, b, take] {
    take(a, 0);
    take(b, a.cols());
  });
  return both;
}

/// The taps side by side, without gradient: [rows, taps * d].
template <typename Real>
Value<Real> join_taps(Tape<Real>& tape, const DraftSource<Real>& source) {
  const size_t width = source.taps.front().cols();
  const Value<Real> all = tape.make_constant(source.decoder->rows, source.taps.size() * width);
  for (size_t tap = 0; tap < source.taps.size(); ++tap) {
    TIDEPOOL_CHECK(source.taps[tap].rows() == source.decoder->rows, "taps of the decoder's rows");
    for (size_t row = 0; row < all.rows(); ++row)
      std::ranges::copy(source.taps[tap].data.row(row), all.data.row(row).subspan(tap * width).begin());
  }
  return all;
}

/// a + b.
template <typename Real>
Value<Real> sum(Tape<Real>& tape, const Value<Real>& a, const Value<Real>& b) {
  const Value<Real> result = tape.make(a.rows(), a.cols());
  for (size_t row = 0; row < a.rows(); ++row)
    std::ranges::transform(a.data.row(row), b.data.row(row), result.data.row(row).begin(), std::plus<>());
  tape.on_backward([a, b, result] {
    for (const Value<Real>& part : {a, b}) {
      if (!part.wants_grad()) continue;
      for (size_t row = 0; row < part.rows(); ++row)
        std::ranges::transform(part.grad.row(row), result.grad.row(row), part.grad.row(row).begin(), std::plus<>());
    }
  });
  return result;
}

/// The anchor of each block, then noise.
std::vector<int32_t> block_ids(const DraftBatch& blocks, int32_t noise_id) {
  std::vector<int32_t> ids = blocks.tokens;
  const size_t size = ids.size() / blocks.rows.size();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i % size != 0) ids[i] = noise_id;
  }
  return ids;
}

}  // namespace

template <typename Real>
DraftParameters<Real> bind_draft(const ParameterSet<Real>& parameters, const ModelConfig& config) {
  TIDEPOOL_CHECK(config.dspark.has_value(), "the config has a draft head");
  const auto find = [&](const std::string& name) { return &parameters.get(name); };
  DraftParameters<Real> result;
  const auto count = static_cast<size_t>(config.dspark->num_layers);
  LayerPlan plan;
  plan.mode = LayerMode::kDraft;
  result.stages.reserve(count);
  for (size_t stage = 0; stage < count; ++stage) {
    result.stages.push_back(bind_block(parameters, fmt::format("mtp.{}.", stage), plan,
                                       static_cast<size_t>(config.dspark->n_routed_experts)));
  }
  const std::string last = fmt::format("mtp.{}.", count - 1);
  result.main_proj = find("mtp.0.main_proj.weight");
  result.main_norm = find("mtp.0.main_norm.weight");
  result.norm = find(last + "norm.weight");
  result.markov_embed = find(last + "markov_head.embed.weight");
  result.markov_head = find(last + "markov_head.head.weight");
  result.confidence = find(last + "confidence_head.proj.weight");
  result.embed = find("embed.weight");
  result.head = find("head.weight");
  return result;
}

DraftBatch choose_draft_blocks(const TokenBatch& batch, const BatchRows& decoder, size_t block_size, size_t count,
                               uint64_t seed) {
  std::vector<BlockPlace> places = all_places(decoder, block_size);
  count = std::min(count, places.size());
  Draws draws(seed);
  for (size_t i = 0; i < count; ++i)
    std::swap(places[i], places[i + draws.below(places.size() - i)]);
  places.resize(count);
  std::ranges::sort(places, {}, &BlockPlace::row);

  DraftBatch blocks;
  blocks.rows.reserve(count);
  double total = 0;
  for (const BlockPlace& place : places) {
    blocks.rows.push_back(place.row);
    const SampleRows& sample = decoder.samples[place.sample];
    const size_t first = batch.segments[place.sample].begin + sample.position + place.row - sample.begin + 1;
    for (size_t i = 0; i < block_size; ++i) {
      blocks.tokens.push_back(batch.ids[first + i]);
      blocks.targets.push_back(batch.ids[first + i + 1]);
      blocks.target_rows.push_back(place.row + 1 + i);
      blocks.weights.push_back(std::exp(-static_cast<double>(i) / kWeightDecay) *
                               static_cast<double>(batch.weights[first + i]));
      total += blocks.weights.back();
    }
  }
  for (double& weight : blocks.weights)
    weight = total > 0 ? weight / total : 0;
  return blocks;
}

template <typename Real>
DraftOutput<Real> run_draft(Tape<Real>& tape, AttentionModel<Real>& model, const DraftParameters<Real>& parameters,
                            const DraftSource<Real>& source, const DraftBatch& blocks, double balance_weight) {
  TIDEPOOL_CHECK(!blocks.rows.empty() && !source.taps.empty(), "blocks behind tapped rows");
  const DsparkConfig& dspark = *model.config.dspark;
  // Closures read positions and ranges.
  const auto layout = std::make_shared<const BlockRows<Real>>(lay_out(tape, model, *source.decoder, blocks));
  model.window_rotation.extend(std::max(std::ranges::max(layout->positions), std::ranges::max(layout->main_positions)) +
                               1);
  const Rotation<Real> turns = turns_at(model, layout->positions);
  const Rotation<Real> main_turns = turns_at(model, layout->main_positions);
  tape.on_backward([layout] { static_cast<void>(layout); });

  const Value<Real> main = released_norm(
      tape, model, linear(tape, model.qat, join_taps(tape, source), *parameters.main_proj), *parameters.main_norm);
  const auto streams_count = static_cast<size_t>(model.config.hc_mult);
  const Value<Real> embeds = embedding(tape, detached(quantised(tape, model.qat, *parameters.embed)),
                                       block_ids(blocks, static_cast<int32_t>(dspark.noise_token_id)));
  Residual<Real> streams{spread_streams(tape, embeds, streams_count), first_mix(tape, embeds.rows(), streams_count)};
  const MoeTraining moe{
      .config = {static_cast<size_t>(dspark.num_experts_per_tok), model.config.norm_topk_prob,
                 static_cast<float>(model.config.routed_scaling_factor), static_cast<float>(model.config.swiglu_limit)},
      .qat = model.qat,
      .balance_weight = balance_weight};
  DraftOutput<Real> output;
  for (const BlockParameters<Real>& stage : parameters.stages) {
    run_sublayer<Real>(tape, model, stage.attn_hc, *stage.attn_norm, streams, [&](const Value<Real>& x) {
      SparseAttention<Real> keys;
      keys.local = window_rows(tape, model, stage.attention, x, turns);
      keys.local_rows = layout->own;
      keys.entries = window_rows(tape, model, stage.attention, main, main_turns);
      keys.selection = &layout->window;
      return attend(tape, model, stage.attention, query_latent(tape, model, stage.attention, x), turns, keys);
    });
    run_sublayer<Real>(tape, model, stage.ffn_hc, *stage.ffn_norm, streams, [&](const Value<Real>& x) {
      // Drafts are of text, whatever stands before them.
      const MoeResult<Real> result = mixture_of_experts(tape, moe, stage.moe, x, {layout->samples, {}});
      output.loads[stage.moe.bias->name] = result.loads.text;
      output.balance_loss += result.balance_loss;
      return result.y;
    });
  }
  const Value<Real> hidden = collapse_streams(tape, streams.stream, streams.pre_mix);
  const Value<Real> x = released_norm(tape, model, hidden, *parameters.norm);
  output.base_logits = linear(tape, x, detached(quantised(tape, model.qat, *parameters.head)));
  const Value<Real> previous =
      embedding(tape, quantised(tape, model.qat, *parameters.markov_embed), std::span(blocks.tokens));
  output.logits = sum(tape, output.base_logits, linear(tape, model.qat, previous, *parameters.markov_head));
  output.confidence = linear(tape, model.qat, side_by_side(tape, hidden, previous), *parameters.confidence);
  return output;
}

template <typename Real>
DraftLoss draft_losses(Tape<Real>& tape, const AttentionModel<Real>& model, const DraftParameters<Real>& parameters,
                       const Value<Real>& hidden, const DraftBatch& blocks, const DraftOutput<Real>& output) {
  const Value<Real> rows = tape.make_constant(blocks.target_rows.size(), hidden.cols());
  for (size_t i = 0; i < blocks.target_rows.size(); ++i)
    std::ranges::copy(hidden.data.row(blocks.target_rows[i]), rows.data.row(i).begin());
  const Value<Real> logits = tape.make_constant(rows.rows(), parameters.head->value.rows());
  matmul(tape, {rows.data, transposed(quantised(tape, model.qat, *parameters.head).data), logits.data});
  return draft_loss<Real>(tape, output.logits, output.confidence, {logits.data, blocks.targets, blocks.weights});
}

#define TIDEPOOL_FOR_REAL(Real)                                                                           \
  template DraftParameters<Real> bind_draft(const ParameterSet<Real>&, const ModelConfig&);               \
  template DraftOutput<Real> run_draft(Tape<Real>&, AttentionModel<Real>&, const DraftParameters<Real>&,  \
                                       const DraftSource<Real>&, const DraftBatch&, double);              \
  template DraftLoss draft_losses(Tape<Real>&, const AttentionModel<Real>&, const DraftParameters<Real>&, \
                                  const Value<Real>&, const DraftBatch&, const DraftOutput<Real>&)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
