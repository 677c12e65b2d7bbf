#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "formats/checkpoint.h"
#include "model/attention.h"
#include "model/draft_head.h"
#include "model/engram_hash.h"
#include "model/forward_pass.h"
#include "model/hyper_connection.h"
#include "model/image_fault.h"
#include "model/layer_table.h"
#include "model/math.h"
#include "model/moe.h"
#include "model/rope.h"
#include "model/weights.h"

namespace tidepool {

/// Choices beside the checkpoint. The defaults are the released model.
struct ModelOptions {
  Numerics numerics = kOfficialNumerics;
  KvFormats kv_formats;
  /// Binds the draft head and keeps its windows, where the checkpoint has one.
  bool has_drafts = false;

  /// Mistakes that tests make on purpose, to see that a test notices.
  struct Faults {
    bool own_pre_mix = false;             ///< collapses with the sub-block's own mix, as V4 does
    bool unscaled_rope_position = false;  ///< rotates global entry j at position j instead of j * ratio
    DraftFault draft = DraftFault::kNone;
    ImageFault image = ImageFault::kNone;
  } faults;
};

/// The backbone: weights bound where they are mapped, and everything that follows from the config. Immutable and
/// shareable; all state is in SequenceState, all scratch in the caller's Arena.
class Model {
 public:
  /// `token_map` maps token ids to Engram's compressed ids; empty for a checkpoint without Engram.
  /// Throws Error(kUnsupported) when it does not fit the config.
  Model(std::shared_ptr<const Checkpoint> checkpoint, std::vector<int32_t> token_map, const ModelOptions& options = {});

  [[nodiscard]] const Checkpoint& checkpoint() const { return *checkpoint_; }
  [[nodiscard]] const ModelConfig& config() const { return checkpoint_->config(); }
  [[nodiscard]] const LayerTable& layer_table() const { return table_; }
  [[nodiscard]] const ModelWeights& weights() const { return weights_; }
  [[nodiscard]] const RopeTables& ropes() const { return ropes_; }
  [[nodiscard]] const EngramHash* engram_hash() const { return engram_hash_ ? &*engram_hash_ : nullptr; }
  [[nodiscard]] const PassShape& pass_shape() const { return pass_shape_; }
  [[nodiscard]] const HyperConnectionConfig& hyper_connection() const { return hyper_connection_; }
  [[nodiscard]] const AttentionConfig& attention() const { return attention_; }
  [[nodiscard]] const MoeConfig& moe() const { return moe_; }
  /// Null without one, be it that the checkpoint has none or that none was asked for.
  [[nodiscard]] const DraftHead* draft_head() const { return draft_head_ ? &*draft_head_ : nullptr; }
  /// Layers whose incoming streams a draft head reads, ascending; empty when the checkpoint has none.
  [[nodiscard]] std::span<const size_t> taps() const { return taps_; }
  [[nodiscard]] const ModelOptions& options() const { return options_; }
  [[nodiscard]] float norm_eps() const { return static_cast<float>(config().rms_norm_eps); }
  [[nodiscard]] std::shared_ptr<const KvLayout> kv_layout() const { return kv_layout_; }

  /// A new sequence, empty.
  [[nodiscard]] SequenceState new_sequence() const { return SequenceState(kv_layout_); }

 private:
  std::shared_ptr<const Checkpoint> checkpoint_;
  ModelOptions options_;
  LayerTable table_;
  ModelWeights weights_;
  RopeTables ropes_;
  std::optional<EngramHash> engram_hash_;
  PassShape pass_shape_;
  HyperConnectionConfig hyper_connection_;
  AttentionConfig attention_;
  MoeConfig moe_;
  std::optional<DraftHead> draft_head_;
  std::vector<size_t> taps_;
  std::shared_ptr<const KvLayout> kv_layout_;
};

/// What a forward call does for one sequence.
struct ForwardRequest {
  SequenceState* state = nullptr;
  /// Next tokens of the sequence, at least one. They are appended.
  std::span<const InputToken> tokens;
  /// Positions from here on pass through the decoder too; the others stop after the encoder and leave only global KV.
  int64_t decoder_from = 0;
  /// How many of the last positions to give logits for; all of them must be decoder positions.
  size_t logits_rows = 0;
  /// Embeddings of the image positions among `tokens`, all of them, in order. Borrowed.
  std::span<const ImageRows> images{};
  /// Whether drafts may follow: the windows of the draft head, if there is one, are kept up. They may be kept up
  /// anyway.
  bool keeps_draft_rows = true;
};

/// Runs the next tokens of any number of sequences through the model. Results for a sequence do not depend on the
/// others or on how its tokens are cut into calls. Returns logits [sum of logits_rows, vocab], in the order of
/// `requests`, in memory of `arena` that stays valid until the caller's scope of it ends. `probe` may be null; with
/// one, a single request.
[[nodiscard]] Span2d<const float> forward(const Model& model, const Runtime& runtime, Arena& arena,
                                          std::span<const ForwardRequest> requests, Probe* probe = nullptr);

}  // namespace tidepool
