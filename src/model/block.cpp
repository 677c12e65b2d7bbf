#include "model/block.h"

#include <algorithm>

#include "model/engram.h"

namespace tidepool {

namespace {

Attention layer_attention(const Model& model, const Math& math, size_t layer) {
  return {math, model.attention(), model.weights().layers[layer].attention, model.layer_table().layers[layer],
          model.ropes()};
}

}  // namespace

void enter_layer(const Model& model, const Math& math, size_t layer, ForwardPass& pass) {
  const LayerPlan& plan = model.layer_table().layers[layer];
  if (plan.engram_slot >= 0) {
    settle_streams(math, model.hyper_connection(), pass);
    apply_engram(
        {math, *model.engram_hash(), *model.weights().layers[layer].engram, static_cast<size_t>(plan.engram_slot),
         layer, static_cast<size_t>(model.config().engram->head_dim), model.pass_shape().streams,
         model.pass_shape().hidden, model.norm_eps(), model.options().faults.image},
        pass);
  }
}

void collect_tap(const Model& model, const Math& math, size_t layer, ForwardPass& pass) {
  const std::span<const size_t> taps = model.taps();
  const auto found = std::ranges::find(taps, layer);
  if (found == taps.end() || (pass.taps.rows == 0 && pass.probe == nullptr)) return;
  settle_streams(math, model.hyper_connection(), pass);
  const Arena::Scope scope(*pass.arena);
  const PassShape& shape = model.pass_shape();
  const auto slot = static_cast<size_t>(found - taps.begin());
  const Span2d<float> mean = pass.taps.rows > 0 ? pass.taps.col_range(slot * shape.hidden, shape.hidden)
                                                : pass.arena->matrix(pass.rows, shape.hidden);
  math.for_rows(pass.rows, [&](size_t row, size_t) {
    for (size_t i = 0; i < shape.hidden; ++i) {
      float sum = 0;
      for (size_t j = 0; j < shape.streams; ++j)
        sum += pass.stream.row(row)[j * shape.hidden + i];
      mean.row(row)[i] = sum / static_cast<float>(shape.streams);
    }
    math.round(mean.row(row));
  });
  pass.record("main_hidden", layer, mean);
}

Span2d<float> attention_input(const Model& model, const Math& math, size_t layer, ForwardPass& pass) {
  settle_streams(math, model.hyper_connection(), pass);
  const Span2d<float> x = pass.arena->matrix(pass.rows, model.pass_shape().hidden);
  collapse_streams(math, model.hyper_connection(), pass.stream, pass.pre_mix, x);
  math.rms_norm_rows(x, model.weights().layers[layer].attn_norm, model.norm_eps(), x);
  return x;
}

void write_layer_kv(const Model& model, const Math& math, size_t layer, ForwardPass& pass) {
  const Arena::Scope scope(*pass.arena);
  write_layer_global_kv(layer_attention(model, math, layer), pass, attention_input(model, math, layer, pass));
}

// X' = B X + C F(A_prev X), twice.
void run_block(const Model& model, const Math& math, const Block& block, ForwardPass& pass) {
  const LayerWeights& weights = block.weights;
  const size_t layer = block.plan.index;
  const HyperConnectionConfig& hyper = model.hyper_connection();
  const Arena::Scope scope(*pass.arena);
  const Span2d<float> x = pass.arena->matrix(pass.rows, model.pass_shape().hidden);
  const Span2d<float> y = pass.output.y;
  const HyperConnectionMix attn_mix = make_mix(*pass.arena, pass.rows, hyper.streams);
  const HyperConnectionMix& ffn_mix = pass.output.mix;
  const bool has_own_mix = model.options().faults.own_pre_mix;

  // ffn_mix and y are those of the block before until the streams have them.
  cross_streams(math, hyper, pass,
                {.left = pass.lacks_output ? &ffn_mix : nullptr,
                 .y = y,
                 .weights = &weights.attn_hc,
                 .entered = &attn_mix,
                 .x = x,
                 .has_own_mix = has_own_mix});
  pass.lacks_output = false;
  math.rms_norm_rows(x, weights.attn_norm, model.norm_eps(), x);
  pass.record("attn_in", layer, x);
  attend({math, model.attention(), weights.attention, block.plan, model.ropes()}, pass, x, y);
  pass.record("attn_out", layer, y);

  cross_streams(
      math, hyper, pass,
      {.left = &attn_mix, .y = y, .weights = &weights.ffn_hc, .entered = &ffn_mix, .x = x, .has_own_mix = has_own_mix});
  math.rms_norm_rows(x, weights.ffn_norm, model.norm_eps(), x);
  pass.record("ffn_in", layer, x);
  mixture_of_experts(math, block.moe, weights.moe, layer, pass, x, y);
  pass.record("ffn_out", layer, y);
  pass.lacks_output = true;

  if (pass.probe == nullptr) return;
  settle_streams(math, hyper, pass);
  pass.record("stream", layer, pass.stream);
  pass.record("pre_mix", layer, pass.pre_mix);
}

void run_layer(const Model& model, const Math& math, size_t layer, ForwardPass& pass) {
  run_block(model, math, {model.weights().layers[layer], model.layer_table().layers[layer], model.moe()}, pass);
}

}  // namespace tidepool
