#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "train/attention.h"
#include "train/engram.h"
#include "train/hyper_connection.h"
#include "train/moe.h"
#include "train/optimizer.h"
#include "train/token_batch.h"
#include "train/vision.h"

namespace tidepool {

/// The parameters of one block, of the backbone or of the draft head.
template <typename Real>
struct BlockParameters {
  AttentionParameters<Real> attention;
  MoeParameters<Real> moe;
  HyperConnectionParameters<Real> attn_hc;
  HyperConnectionParameters<Real> ffn_hc;
  const Parameter<Real>* attn_norm = nullptr;
  const Parameter<Real>* ffn_norm = nullptr;
};

/// Finds those of the block whose names begin with `prefix` ("layers.3.", "mtp.0.").
template <typename Real>
[[nodiscard]] BlockParameters<Real> bind_block(const ParameterSet<Real>& parameters, const std::string& prefix,
                                               const LayerPlan& plan, size_t experts);

/// The residual streams of some rows, and the mix that the next sub-block reads them with.
template <typename Real>
struct Residual {
  Value<Real> stream;   ///< [rows, n * d]
  Value<Real> pre_mix;  ///< [rows, n]
};

/// How a pass is run.
struct PassOptions {
  Qat qat = {};
  IndexTraining index = {};
  size_t window = 0;             ///< rows of a window; 0: the config's
  double balance_weight = 1e-4;  ///< of the balance loss, among the gradients
};

/// One pass over a batch, up to the input of the output head. Whoever goes back over the tape keeps it until then.
template <typename Real>
struct BackbonePass {
  std::unique_ptr<SharedAttention<Real>> attention;
  Value<Real> hidden;             ///< [decoder rows, d], normalised
  std::vector<Value<Real>> taps;  ///< of the config's draft head, [decoder rows, d] each: mean streams entering layers
  BiasLoads loads;                ///< of all routed experts, by the name of their bias
  double balance_loss = 0;        ///< of all layers together, weighted
  [[nodiscard]] const BatchRows& rows() const { return attention->decoder.rows; }
};

/// The backbone as it is trained: what the engine computes (model/), on a tape.
template <typename Real>
class TrainingModel {
 public:
  /// `token_map` maps token ids to Engram's compressed ids; empty for a config without Engram. `parameters` are those
  /// of the config, and outlive the model. Throws Error(kUnsupported) when the map does not fit.
  TrainingModel(const ModelConfig& config, std::vector<int32_t> token_map, const ParameterSet<Real>& parameters);

  [[nodiscard]] const ModelConfig& config() const { return attention_.config; }
  [[nodiscard]] const LayerTable& layer_table() const { return attention_.table; }
  [[nodiscard]] AttentionModel<Real>& attention() { return attention_; }

  /// The encoder runs over all rows, the decoder over those from each segment's decoder_begin on. A batch with pictures
  /// needs a config with a vision part. One pass at a time.
  [[nodiscard]] BackbonePass<Real> run(Tape<Real>& tape, const TokenBatch& batch, const PassOptions& options);

 private:
  struct Layer {
    BlockParameters<Real> block;
    std::optional<EngramParameters<Real>> engram;
  };
  /// What a pass has, besides what it leaves.
  struct Context;

  [[nodiscard]] Value<Real> embed(Context& context) const;
  void enter_layer(Context& context, size_t layer, Residual<Real>& residual) const;
  void collect_tap(Context& context, size_t layer, const Residual<Real>& residual) const;
  void run_block(Context& context, size_t layer, const Value<Real>& x, Residual<Real>& residual) const;
  [[nodiscard]] Value<Real> collapse(Context& context, const Residual<Real>& residual,
                                     const Parameter<Real>& norm) const;

  AttentionModel<Real> attention_;
  std::optional<EngramHash> hash_;
  HyperConnectionShape hyper_;
  MoeConfig moe_;
  std::vector<size_t> taps_;  ///< layers, ascending
  std::vector<Layer> layers_;
  const Parameter<Real>* embed_ = nullptr;
  std::optional<VisionParameters<Real>> vision_;
  const Parameter<Real>* norm_ = nullptr;
};

/// The targets and weights of some rows of a batch, in their order.
struct RowTargets {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
/// `scale` is multiplied to each weight.
[[nodiscard]] RowTargets targets_of(const TokenBatch& batch, const BatchRows& rows, double scale);

#define TIDEPOOL_FOR_REAL(Real)                                                                                     \
  extern template BlockParameters<Real> bind_block(const ParameterSet<Real>&, const std::string&, const LayerPlan&, \
                                                   size_t);                                                         \
  extern template class TrainingModel<Real>
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
