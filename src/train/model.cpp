#include "train/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "train/embedding.h"
#include "train/norm.h"
#include "train/vision_parts.h"

namespace tidepool {

namespace {

template <typename Real>
HyperConnectionParameters<Real> bind_hyper_connection(const ParameterSet<Real>& parameters, const std::string& prefix) {
  return {parameters.get(prefix + "_fn").value, parameters.get(prefix + "_base").value,
          parameters.get(prefix + "_scale").value};
}

std::vector<InputToken> tokens_of(const TokenBatch& batch) {
  std::vector<InputToken> tokens;
  tokens.reserve(batch.rows());
  for (const int32_t id : batch.ids)
    tokens.push_back({id, false});
  for (const SamplePicture& picture : batch.pictures) {
    for (InputToken& token :
         std::span(tokens).subspan(picture.begin, static_cast<size_t>(picture.image->plan.tokens())))
      token.is_image = true;
  }
  return tokens;
}

/// Of each of `rows`, whether it is an image position. Empty for a batch without pictures.
std::vector<uint8_t> image_flags(const TokenBatch& batch, std::span<const InputToken> tokens, const BatchRows& rows) {
  std::vector<uint8_t> flags;
  if (batch.pictures.empty()) return flags;
  flags.reserve(rows.rows);
  for (size_t s = 0; s < rows.samples.size(); ++s) {
    const size_t begin = batch.segments[s].begin + rows.samples[s].position;
    for (const InputToken& token : tokens.subspan(begin, rows.samples[s].count))
      flags.push_back(token.is_image ? 1 : 0);
  }
  return flags;
}

/// The part of `all`, hashed for every row of a batch, that `rows` need.
EngramRows take_rows(const EngramRows& all, const BatchRows& encoder, const BatchRows& rows) {
  EngramRows taken;
  taken.columns = all.columns;
  taken.table_rows.reserve(rows.rows * all.columns);
  taken.is_dead.reserve(rows.rows);
  for (size_t s = 0; s < rows.samples.size(); ++s) {
    const size_t begin = encoder.samples[s].begin + rows.samples[s].position;
    const size_t end = begin + rows.samples[s].count;
    taken.table_rows.insert(taken.table_rows.end(),
                            all.table_rows.begin() + static_cast<std::ptrdiff_t>(begin * all.columns),
                            all.table_rows.begin() + static_cast<std::ptrdiff_t>(end * all.columns));
    taken.is_dead.insert(taken.is_dead.end(), all.is_dead.begin() + static_cast<std::ptrdiff_t>(begin),
                         all.is_dead.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return taken;
}

}  // namespace

template <typename Real>
BlockParameters<Real> bind_block(const ParameterSet<Real>& parameters, const std::string& prefix, const LayerPlan& plan,
                                 size_t experts) {
  return {bind_attention(parameters, prefix, plan),
          bind_moe(parameters, prefix + "ffn.", experts),
          bind_hyper_connection(parameters, prefix + "hc_attn"),
          bind_hyper_connection(parameters, prefix + "hc_ffn"),
          &parameters.get(prefix + "attn_norm.weight"),
          &parameters.get(prefix + "ffn_norm.weight")};
}

template <typename Real>
struct TrainingModel<Real>::Context {
  Tape<Real>& tape;
  const TokenBatch& batch;
  const PassOptions& options;
  BackbonePass<Real>& pass;
  std::vector<InputToken> tokens;
  std::vector<uint8_t> encoder_images;  ///< image_flags() of each half's rows
  std::vector<uint8_t> decoder_images;

  [[nodiscard]] SharedAttention<Real>& attention() const { return *pass.attention; }
  /// `rows` are those of one of the halves.
  [[nodiscard]] std::span<const uint8_t> flags_of(const BatchRows& rows) const {
    return &rows == &attention().encoder.rows ? encoder_images : decoder_images;
  }
  /// Whether `residual` holds all rows, not the decoder's alone.
  [[nodiscard]] bool has_all_rows(const Residual<Real>& residual) const {
    return residual.stream.rows() == attention().encoder.rows.rows;
  }
};

template <typename Real>
TrainingModel<Real>::TrainingModel(const ModelConfig& config, std::vector<int32_t> token_map,
                                   const ParameterSet<Real>& parameters)
    : attention_(config),
      hyper_{static_cast<size_t>(config.hc_mult), static_cast<size_t>(config.hc_sinkhorn_iters), config.hc_eps,
             config.rms_norm_eps},
      moe_{.experts_per_token = static_cast<size_t>(config.num_experts_per_tok),
           .norm_topk_prob = config.norm_topk_prob,
           .routed_scaling_factor = static_cast<float>(config.routed_scaling_factor),
           .swiglu_limit = static_cast<float>(config.swiglu_limit)},
      embed_(&parameters.get("embed.weight")),
      norm_(&parameters.get("norm.weight")) {
  if (config.engram) hash_.emplace(*config.engram, std::move(token_map));
  if (config.dspark) taps_.assign(config.dspark->target_layer_ids.begin(), config.dspark->target_layer_ids.end());
  std::ranges::sort(taps_);
  if (config.vision) vision_.emplace(bind_vision(parameters, config));
  layers_.reserve(attention_.table.layers.size());
  for (const LayerPlan& plan : attention_.table.layers) {
    Layer layer;
    layer.block = bind_block(parameters, fmt::format("layers.{}.", plan.index), plan,
                             static_cast<size_t>(config.n_routed_experts));
    if (plan.engram_slot >= 0) layer.engram = bind_engram(parameters, plan.index);
    layers_.push_back(std::move(layer));
  }
}

/// Rows of the embedding table, and those of the vision tower where pictures are.
template <typename Real>
Value<Real> TrainingModel<Real>::embed(Context& context) const {
  const std::vector<SamplePicture>& pictures = context.batch.pictures;
  const Value<Real> text =
      embedding(context.tape, quantised(context.tape, context.options.qat, *embed_), context.batch.ids);
  if (pictures.empty()) return text;
  TIDEPOOL_CHECK(vision_.has_value(), "pictures are refused where samples are made when nothing can see them");
  std::vector<const PreparedImage*> images;
  images.reserve(pictures.size());
  std::vector<size_t> places;
  places.reserve(context.batch.rows());
  for (const SamplePicture& picture : pictures) {
    images.push_back(picture.image.get());
    for (size_t i = 0; i < static_cast<size_t>(picture.image->plan.tokens()); ++i)
      places.push_back(picture.begin + i);
  }
  return replace_rows<Real>(context.tape, text,
                            encode_pictures<Real>(context.tape, context.options.qat, *vision_, images), places);
}

template <typename Real>
void TrainingModel<Real>::enter_layer(Context& context, size_t layer, Residual<Real>& residual) const {
  const LayerPlan& plan = attention_.table.layers[layer];
  if (plan.engram_slot < 0) return;
  const BatchRows& encoder = context.attention().encoder.rows;
  const EngramRows all = hash_rows(*hash_, static_cast<size_t>(plan.engram_slot), context.tokens, encoder.samples);
  residual.stream =
      engram(context.tape, context.options.qat, *layers_[layer].engram,
             context.has_all_rows(residual) ? all : take_rows(all, encoder, context.attention().decoder.rows),
             residual.stream, static_cast<Real>(config().rms_norm_eps));
}

template <typename Real>
void TrainingModel<Real>::collect_tap(Context& context, size_t layer, const Residual<Real>& residual) const {
  if (std::ranges::find(taps_, layer) == taps_.end()) return;
  const Value<Real> mean = mean_streams(context.tape, residual.stream, hyper_.streams);
  context.pass.taps.push_back(
      context.has_all_rows(residual) ? take_decoder_rows(context.tape, mean, context.attention()) : mean);
}

template <typename Real>
Value<Real> TrainingModel<Real>::collapse(Context& context, const Residual<Real>& residual,
                                          const Parameter<Real>& norm) const {
  const Value<Real> x = collapse_streams(context.tape, residual.stream, residual.pre_mix);
  return rms_norm(context.tape, x, quantised(context.tape, context.options.qat, norm),
                  static_cast<Real>(config().rms_norm_eps));
}

/// X' = B X + C F(A_prev X) for attention, whose normalised input is x, and for the experts.
template <typename Real>
void TrainingModel<Real>::run_block(Context& context, size_t layer, const Value<Real>& x,
                                    Residual<Real>& residual) const {
  Tape<Real>& tape = context.tape;
  const LayerPlan& plan = attention_.table.layers[layer];
  const BlockParameters<Real>& block = layers_[layer].block;

  const HyperConnection<Real> attn_mix = hyper_connection_mix(tape, hyper_, block.attn_hc, residual.stream);
  const Value<Real> attended = tidepool::attention(tape, {plan, block.attention}, x, context.attention());
  residual = {expand_streams(tape, attn_mix, residual.stream, attended), attn_mix.pre};

  const HyperConnection<Real> ffn_mix = hyper_connection_mix(tape, hyper_, block.ffn_hc, residual.stream);
  const BatchRows& rows = context.attention().half(plan).rows;
  MoeResult<Real> experts =
      mixture_of_experts(tape, {moe_, context.options.qat, context.options.balance_weight}, block.moe,
                         collapse(context, residual, *block.ffn_norm), {rows.samples, context.flags_of(rows)});
  residual = {expand_streams(tape, ffn_mix, residual.stream, experts.y), ffn_mix.pre};
  context.pass.balance_loss += experts.balance_loss;
  context.pass.loads[block.moe.bias->name] = std::move(experts.loads.text);
  if (block.moe.bias_vl != nullptr) context.pass.loads[block.moe.bias_vl->name] = std::move(experts.loads.image);
}

template <typename Real>
BackbonePass<Real> TrainingModel<Real>::run(Tape<Real>& tape, const TokenBatch& batch, const PassOptions& options) {
  attention_.qat = options.qat;
  BackbonePass<Real> pass;
  pass.attention = std::make_unique<SharedAttention<Real>>(attention_, batch, options.index, options.window);
  Context context{tape, batch, options, pass, tokens_of(batch), {}, {}};
  context.encoder_images = image_flags(batch, context.tokens, pass.attention->encoder.rows);
  context.decoder_images = image_flags(batch, context.tokens, pass.attention->decoder.rows);
  Residual<Real> residual{spread_streams(tape, embed(context), hyper_.streams),
                          first_mix(tape, batch.rows(), hyper_.streams)};
  for (const LayerPlan& plan : attention_.table.layers) {
    const BlockParameters<Real>& block = layers_[plan.index].block;
    enter_layer(context, plan.index, residual);
    collect_tap(context, plan.index, residual);
    Value<Real> x = collapse(context, residual, *block.attn_norm);
    if (plan.mode == LayerMode::kFull) make_global_kv(tape, {plan, block.attention}, x, context.attention());
    if (plan.index == attention_.table.decoder_begin) {
      x = take_decoder_rows(tape, x, context.attention());
      residual = {take_decoder_rows(tape, residual.stream, context.attention()),
                  take_decoder_rows(tape, residual.pre_mix, context.attention())};
    }
    run_block(context, plan.index, x, residual);
  }
  if (attention_.table.decoder_begin == attention_.table.layers.size()) {
    residual = {take_decoder_rows(tape, residual.stream, context.attention()),
                take_decoder_rows(tape, residual.pre_mix, context.attention())};
  }
  pass.hidden = collapse(context, residual, *norm_);
  return pass;
}

RowTargets targets_of(const TokenBatch& batch, const BatchRows& rows, double scale) {
  RowTargets targets;
  targets.ids.reserve(rows.rows);
  targets.weights.reserve(rows.rows);
  for (size_t s = 0; s < rows.samples.size(); ++s) {
    const size_t begin = batch.segments[s].begin + rows.samples[s].position;
    for (size_t row = begin; row < begin + rows.samples[s].count; ++row) {
      targets.ids.push_back(batch.targets[row]);
      targets.weights.push_back(static_cast<float>(batch.weights[row] * scale));
    }
  }
  return targets;
}

#define TIDEPOOL_FOR_REAL(Real)                                                                                       \
  template BlockParameters<Real> bind_block(const ParameterSet<Real>&, const std::string&, const LayerPlan&, size_t); \
  template class TrainingModel<Real>
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
