#include "model/model.h"

#include <algorithm>

#include "base/check.h"
#include "model/decoder.h"
#include "model/draft.h"
#include "model/embedding.h"
#include "model/encoder.h"
#include "model/head.h"

namespace tidepool {

Model::Model(std::shared_ptr<const Checkpoint> checkpoint, std::vector<int32_t> token_map, const ModelOptions& options)
    : checkpoint_(std::move(checkpoint)),
      options_(options),
      table_(make_layer_table(config())),
      weights_(bind_weights(*checkpoint_, table_)),
      ropes_(make_rope_tables(config())) {
  const ModelConfig& c = config();
  if (c.engram) engram_hash_.emplace(*c.engram, std::move(token_map));
  const auto size = [](int64_t value) { return static_cast<size_t>(value); };
  pass_shape_ = {size(c.hc_mult), size(c.hidden_size), size(c.index_topk), size(c.candidate_topk_blocks)};
  hyper_connection_ = {size(c.hc_mult), size(c.hidden_size), c.hc_sinkhorn_iters, static_cast<float>(c.hc_eps),
                       norm_eps()};
  attention_.heads = size(c.num_attention_heads);
  attention_.head_dim = size(c.head_dim);
  attention_.rope_dim = size(c.qk_rope_head_dim);
  attention_.groups = size(c.o_groups);
  attention_.norm_eps = norm_eps();
  attention_.index_heads = size(c.index_n_heads);
  attention_.index_head_dim = size(c.index_head_dim);
  attention_.index_topk = size(c.index_topk);
  attention_.candidates = {c.candidate_block_size, c.candidate_topk_blocks};
  attention_.unscaled_rope_position = options.faults.unscaled_rope_position;
  attention_.draft_fault = options.faults.draft;
  moe_ = {size(c.num_experts_per_tok), c.norm_topk_prob, static_cast<float>(c.routed_scaling_factor),
          static_cast<float>(c.swiglu_limit), options.faults.image};
  if (options.has_drafts && c.dspark) draft_head_ = make_draft_head(*checkpoint_, table_, options.faults.draft);
  for (const int64_t layer : c.dspark ? c.dspark->target_layer_ids : std::vector<int64_t>{})
    taps_.push_back(size(layer) - (options.faults.draft == DraftFault::kEarlyTaps ? 1 : 0));
  kv_layout_ = std::make_shared<const KvLayout>(draft_head_ ? make_kv_layout_with_drafts(c, table_, options.kv_formats)
                                                            : make_kv_layout(c, table_, options.kv_formats));
}

namespace {

/// Positions of each segment from which the decoder runs; length() where it does not.
std::vector<int64_t> start_decoder_rows(std::span<const ForwardRequest> requests) {
  std::vector<int64_t> from;
  for (const ForwardRequest& request : requests) {
    SequenceState& state = *request.state;
    const int64_t first = state.length() - static_cast<int64_t>(request.tokens.size());
    const int64_t begin = std::max(first, request.decoder_from);
    const auto decoder_rows = std::max(state.length() - begin, int64_t{0});
    TIDEPOOL_CHECK(static_cast<int64_t>(request.logits_rows) <= decoder_rows, "logits come from decoder rows");
    if (decoder_rows > 0) state.begin_decoder_rows(begin);
    from.push_back(begin);
  }
  return from;
}

/// The pass's rows that logits are asked for.
std::vector<size_t> logits_rows(const ForwardPass& pass, std::span<const ForwardRequest> requests) {
  std::vector<size_t> rows;
  for (const ForwardRequest& request : requests) {
    for (const PassSegment& segment : pass.segments) {
      if (segment.state != request.state) continue;
      const size_t end = segment.row_begin + segment.rows;
      for (size_t row = end - request.logits_rows; row < end; ++row)
        rows.push_back(row);
    }
  }
  return rows;
}

/// Room for what the draft head taps. The encoder's pass has more rows, so it gets none unless a tap lies in it.
Span2d<float> make_taps(const Model& model, const ForwardPass& pass) {
  return pass.arena->matrix(pass.rows, model.taps().size() * model.pass_shape().hidden);
}

}  // namespace

Span2d<const float> forward(const Model& model, const Runtime& runtime, Arena& arena,
                            std::span<const ForwardRequest> requests, Probe* probe) {
  TIDEPOOL_CHECK(probe == nullptr || requests.size() == 1, "a probe follows one sequence");
  size_t logits_count = 0;
  std::vector<PassSegment> segments;
  for (const ForwardRequest& request : requests) {
    TIDEPOOL_CHECK(!request.tokens.empty(), "a request brings at least one token");
    segments.push_back({request.state, 0, request.tokens.size(), request.state->length(), request.images});
    request.state->append(request.tokens);
    logits_count += request.logits_rows;
  }
  const Math math(runtime, model.options().numerics);
  const Span2d<float> logits = arena.matrix(logits_count, static_cast<size_t>(model.config().vocab_size));
  const Arena::Scope scope(arena);

  ForwardPass pass = make_pass(arena, std::move(segments), model.pass_shape(), model.ropes());
  pass.probe = probe;
  const bool has_draft_rows =
      model.draft_head() != nullptr && std::ranges::any_of(requests, &ForwardRequest::keeps_draft_rows);
  if (has_draft_rows && model.taps().front() < model.layer_table().decoder_begin) pass.taps = make_taps(model, pass);
  embed_tokens(model, math, pass);
  run_encoder(model, math, pass);
  ForwardPass decoder_pass = narrow_pass(pass, start_decoder_rows(requests), model.pass_shape(), model.ropes());
  if (decoder_pass.rows == 0) return logits;
  if (has_draft_rows && decoder_pass.taps.rows == 0) decoder_pass.taps = make_taps(model, decoder_pass);
  run_decoder(model, math, decoder_pass);
  if (has_draft_rows) write_draft_rows(model, math, decoder_pass);
  compute_logits(model, math, decoder_pass, logits_rows(decoder_pass, requests), logits);
  return logits;
}

}  // namespace tidepool
