#pragma once

#include <string>

#include "model/layer_table.h"
#include "train/fake_quant.h"
#include "train/rope.h"
#include "train/sparse_attention.h"

namespace tidepool {

/// What the attention of all layers of a model shares. (docs/model.md 2.1 to 2.5)
template <typename Real>
struct AttentionModel {
  explicit AttentionModel(const ModelConfig& config);

  ModelConfig config;
  LayerTable table;
  RotationTable<Real> window_rotation;  ///< of layers without global attention, and of drafts
  RotationTable<Real> global_rotation;  ///< of all others
  Qat qat;                              ///< what the next pass rounds
};

/// Tensors of one layer's attention, under their released names. Null where the layer has none.
template <typename Real>
struct AttentionParameters {
  const Parameter<Real>* wq_a = nullptr;
  const Parameter<Real>* q_norm = nullptr;
  const Parameter<Real>* wq_b = nullptr;
  const Parameter<Real>* wkv = nullptr;
  const Parameter<Real>* kv_norm = nullptr;
  const Parameter<Real>* sink = nullptr;
  const Parameter<Real>* wo_a = nullptr;
  const Parameter<Real>* wo_b = nullptr;
  const Parameter<Real>* compressor_wkv = nullptr;  ///< from here to k_norm: Full layers
  const Parameter<Real>* compressor_wgate = nullptr;
  const Parameter<Real>* compressor_norm = nullptr;
  const Parameter<Real>* index_wk = nullptr;
  const Parameter<Real>* index_k_norm = nullptr;
  const Parameter<Real>* index_wq_b = nullptr;  ///< these two: Full and Reindex layers
  const Parameter<Real>* index_weights_proj = nullptr;
};

/// Finds them; `prefix` is that of the block ("layers.3.", "mtp.0.").
template <typename Real>
[[nodiscard]] AttentionParameters<Real> bind_attention(const ParameterSet<Real>& parameters, const std::string& prefix,
                                                       const LayerPlan& plan);

/// The normalised query latent of x, [rows, q_rank].
template <typename Real>
[[nodiscard]] Value<Real> query_latent(Tape<Real>& tape, const AttentionModel<Real>& model,
                                       const AttentionParameters<Real>& parameters, const Value<Real>& x);

/// The window rows that x makes, [rows, head_dim], turned and on their grid. `turns` says where each row stands.
template <typename Real>
[[nodiscard]] Value<Real> window_rows(Tape<Real>& tape, const AttentionModel<Real>& model,
                                      const AttentionParameters<Real>& parameters, const Value<Real>& x,
                                      const Rotation<Real>& turns);

/// Attention of queries made from `latent` over the keys that `keys` names (its q and sink are filled in), turned back
/// and projected: [rows, d].
template <typename Real>
[[nodiscard]] Value<Real> attend(Tape<Real>& tape, const AttentionModel<Real>& model,
                                 const AttentionParameters<Real>& parameters, const Value<Real>& latent,
                                 const Rotation<Real>& turns, SparseAttention<Real> keys);

/// RMSNorm with a released weight.
template <typename Real>
[[nodiscard]] Value<Real> released_norm(Tape<Real>& tape, const AttentionModel<Real>& model, const Value<Real>& x,
                                        const Parameter<Real>& weight);

/// x on the grid of a row format where `is_on`, else x itself.
template <typename Real>
[[nodiscard]] Value<Real> quantised_if(Tape<Real>& tape, bool is_on, const Value<Real>& x, RowFormat format) {
  return is_on ? quantise_rows(tape, x, format) : x;
}

/// The same value, from which no gradient goes back.
template <typename Real>
[[nodiscard]] Value<Real> detached(const Value<Real>& value) {
  return {value.data, {}};
}

#define TIDEPOOL_FOR_REAL(Real)                                                                                        \
  extern template struct AttentionModel<Real>;                                                                         \
  extern template AttentionParameters<Real> bind_attention(const ParameterSet<Real>&, const std::string&,              \
                                                           const LayerPlan&);                                          \
  extern template Value<Real> query_latent(Tape<Real>&, const AttentionModel<Real>&, const AttentionParameters<Real>&, \
                                           const Value<Real>&);                                                        \
  extern template Value<Real> window_rows(Tape<Real>&, const AttentionModel<Real>&, const AttentionParameters<Real>&,  \
                                          const Value<Real>&, const Rotation<Real>&);                                  \
  extern template Value<Real> attend(Tape<Real>&, const AttentionModel<Real>&, const AttentionParameters<Real>&,       \
                                     const Value<Real>&, const Rotation<Real>&, SparseAttention<Real>);                \
  extern template Value<Real> released_norm(Tape<Real>&, const AttentionModel<Real>&, const Value<Real>&,              \
                                            const Parameter<Real>&)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
