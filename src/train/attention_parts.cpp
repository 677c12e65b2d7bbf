#include "train/attention_parts.h"

#include "train/grouped_linear.h"
#include "train/norm.h"

namespace tidepool {

template <typename Real>
AttentionModel<Real>::AttentionModel(const ModelConfig& model_config)
    : config(model_config),
      table(make_layer_table(model_config)),
      window_rotation(make_rope_tables(model_config).window),
      global_rotation(make_rope_tables(model_config).global) {}

template <typename Real>
AttentionParameters<Real> bind_attention(const ParameterSet<Real>& parameters, const std::string& prefix,
                                         const LayerPlan& plan) {
  const auto find = [&](const char* name) { return &parameters.get(prefix + "attn." + name); };
  AttentionParameters<Real> result;
  result.wq_a = find("wq_a.weight");
  result.q_norm = find("q_norm.weight");
  result.wq_b = find("wq_b.weight");
  result.wkv = find("wkv.weight");
  result.kv_norm = find("kv_norm.weight");
  result.sink = find("attn_sink");
  result.wo_a = find("wo_a.weight");
  result.wo_b = find("wo_b.weight");
  if (plan.mode == LayerMode::kFull) {
    result.compressor_wkv = find("compressor.wkv.weight");
    if (plan.ratio > 1) result.compressor_wgate = find("compressor.wgate.weight");
    result.compressor_norm = find("compressor.norm.weight");
    result.index_wk = find("indexer.wk.weight");
    result.index_k_norm = find("indexer.k_norm.weight");
  }
  if (plan.mode == LayerMode::kFull || plan.mode == LayerMode::kReindex) {
    result.index_wq_b = find("indexer.wq_b.weight");
    result.index_weights_proj = find("indexer.weights_proj.weight");
  }
  return result;
}

template <typename Real>
Value<Real> released_norm(Tape<Real>& tape, const AttentionModel<Real>& model, const Value<Real>& x,
                          const Parameter<Real>& weight) {
  return rms_norm(tape, x, quantised(tape, model.qat, weight), static_cast<Real>(model.config.rms_norm_eps));
}

template <typename Real>
Value<Real> query_latent(Tape<Real>& tape, const AttentionModel<Real>& model,
                         const AttentionParameters<Real>& parameters, const Value<Real>& x) {
  return released_norm(tape, model, linear(tape, model.qat, x, *parameters.wq_a), *parameters.q_norm);
}

template <typename Real>
Value<Real> window_rows(Tape<Real>& tape, const AttentionModel<Real>& model,
                        const AttentionParameters<Real>& parameters, const Value<Real>& x,
                        const Rotation<Real>& turns) {
  const Value<Real> kv = released_norm(tape, model, linear(tape, model.qat, x, *parameters.wkv), *parameters.kv_norm);
  rotate_in_place(tape, kv, turns);
  return quantised_if(tape, model.qat.window, kv, RowFormat::kFp8Block32);
}

template <typename Real>
Value<Real> attend(Tape<Real>& tape, const AttentionModel<Real>& model, const AttentionParameters<Real>& parameters,
                   const Value<Real>& latent, const Rotation<Real>& turns, SparseAttention<Real> keys) {
  keys.q = linear(tape, model.qat, latent, *parameters.wq_b);
  keys.sink = parameters.sink->value;
  rotate_in_place(tape, keys.q, turns);
  const Value<Real> o = sparse_attention(tape, keys);
  Rotation<Real> back = turns;
  back.turn = Turn::kBack;
  rotate_in_place(tape, o, back);
  // The reference puts no activation grid in front of the first of the two.
  const Value<Real> low =
      grouped_linear(tape, o, quantised(tape, model.qat, *parameters.wo_a), static_cast<size_t>(model.config.o_groups));
  return linear(tape, model.qat, low, *parameters.wo_b);
}

#define TIDEPOOL_FOR_REAL(Real)                                                                                       \
  template struct AttentionModel<Real>;                                                                               \
  template AttentionParameters<Real> bind_attention(const ParameterSet<Real>&, const std::string&, const LayerPlan&); \
  template Value<Real> query_latent(Tape<Real>&, const AttentionModel<Real>&, const AttentionParameters<Real>&,       \
                                    const Value<Real>&);                                                              \
  template Value<Real> window_rows(Tape<Real>&, const AttentionModel<Real>&, const AttentionParameters<Real>&,        \
                                   const Value<Real>&, const Rotation<Real>&);                                        \
  template Value<Real> attend(Tape<Real>&, const AttentionModel<Real>&, const AttentionParameters<Real>&,             \
                              const Value<Real>&, const Rotation<Real>&, SparseAttention<Real>);                      \
  template Value<Real> released_norm(Tape<Real>&, const AttentionModel<Real>&, const Value<Real>&,                    \
                                     const Parameter<Real>&)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
