#include "model/draft.h"

#include <algorithm>

#include "base/check.h"
#include "model/block.h"
#include "model/embedding.h"

namespace tidepool {

namespace {

Attention stage_attention(const Model& model, const Math& math, size_t stage) {
  const DraftHead& head = *model.draft_head();
  return {math, model.attention(), head.weights.stages[stage].attention, head.stages[stage], model.ropes()};
}

/// The rows' input to the stages' windows: rms(main_proj taps).
Span2d<float> main_rows(const Model& model, const Math& math, const ForwardPass& pass) {
  const DraftWeights& weights = model.draft_head()->weights;
  const Span2d<float> x = pass.arena->matrix(pass.rows, model.pass_shape().hidden);
  math.quantise_rows(pass.taps);
  math.linear(weights.main_proj, pass.taps, x);
  if (model.options().faults.draft != DraftFault::kUnnormalisedInput)
    math.rms_norm_rows(x, weights.main_norm, model.norm_eps(), x);
  if (model.options().faults.draft == DraftFault::kNormalisedTwice)
    math.rms_norm_rows(x, weights.stages.front().attn_norm, model.norm_eps(), x);
  return x;
}

/// W1 of each token, [tokens, rank].
Span2d<float> markov_rows(const Model& model, Arena& arena, std::span<const int32_t> tokens) {
  const MatrixView& embed = model.draft_head()->weights.markov_embed;
  const Span2d<float> rows = arena.matrix(tokens.size(), embed.in);
  for (size_t i = 0; i < tokens.size(); ++i)
    dequantise_row(embed, static_cast<size_t>(tokens[i]), rows.row(i));
  return rows;
}

/// The anchor, then noise, at the positions that come next; read from no sequence.
void embed_blocks(const Model& model, const Math& math, std::span<const DraftRequest> requests,
                  const ForwardPass& pass) {
  const DraftHead& head = *model.draft_head();
  math.for_rows(pass.rows, [&](size_t row, size_t) {
    const int32_t id = row % head.block == 0 ? requests[row / head.block].anchor : head.noise_id;
    embed_row(model, id, pass.stream.row(row), pass.pre_mix.row(row));
  });
}

}  // namespace

void write_draft_rows(const Model& model, const Math& math, const ForwardPass& pass) {
  const DraftHead& head = *model.draft_head();
  for (const PassSegment& segment : pass.segments)
    segment.state->begin_draft_rows(segment.position);
  const Arena::Scope scope(*pass.arena);
  const Span2d<float> x = main_rows(model, math, pass);
  math.quantise_rows(x);
  for (size_t stage = 0; stage < head.stages.size(); ++stage)
    write_window_rows(stage_attention(model, math, stage), pass, x);
}

bool has_draft_rows(const SequenceState& state) {
  return state.layout().draft_stages > 0 && state.draft_end() == state.length() &&
         state.draft_begin() < state.draft_end();
}

DraftBlocks run_draft_blocks(const Model& model, const Runtime& runtime, Arena& arena,
                             std::span<const DraftRequest> requests) {
  TIDEPOOL_CHECK(model.draft_head() != nullptr && !requests.empty(), "drafts need a head and a sequence");
  const DraftHead& head = *model.draft_head();
  const size_t hidden = model.pass_shape().hidden;
  const size_t rows = requests.size() * head.block;
  const DraftFault fault = model.options().faults.draft;
  const DraftBlocks blocks{arena.matrix(rows, hidden), arena.matrix(rows, model.weights().head.out)};
  const Arena::Scope scope(arena);
  const Math math(runtime, model.options().numerics);
  std::vector<PassSegment> segments;
  for (const DraftRequest& request : requests) {
    TIDEPOOL_CHECK(has_draft_rows(*request.state), "drafts need the windows of the sequence");
    const int64_t early = fault == DraftFault::kBlockStartsOneEarly ? 1 : 0;
    segments.push_back({request.state, 0, head.block, request.state->length() - early});
  }
  ForwardPass pass = make_pass(arena, std::move(segments), model.pass_shape(), model.ropes());
  embed_blocks(model, math, requests, pass);
  for (size_t stage = 0; stage < head.stages.size(); ++stage)
    run_block(model, math, {head.weights.stages[stage], head.stages[stage], head.moe}, pass);
  settle_streams(math, model.hyper_connection(), pass);

  collapse_streams(math, model.hyper_connection(), pass.stream, pass.pre_mix, blocks.hidden);
  const Span2d<float> x = arena.matrix(rows, hidden);
  const Bf16* norm = fault == DraftFault::kBackboneNorm ? model.weights().norm : head.weights.norm;
  math.rms_norm_rows(blocks.hidden, norm, model.norm_eps(), x);
  math.linear_unrounded(model.weights().head, x, blocks.logits);
  if (fault == DraftFault::kConfidenceBehindNorm) std::ranges::copy(x.data, x.data + rows * hidden, blocks.hidden.data);
  return blocks;
}

void add_markov_bias(const Model& model, const Runtime& runtime, Arena& arena, std::span<const int32_t> previous,
                     Span2d<float> logits) {
  TIDEPOOL_CHECK(previous.size() == logits.rows, "a token before each row");
  const Arena::Scope scope(arena);
  const Math math(runtime, model.options().numerics);
  const Span2d<float> bias = arena.matrix(logits.rows, logits.cols);
  math.linear_unrounded(model.draft_head()->weights.markov_head, markov_rows(model, arena, previous), bias);
  for (size_t row = 0; row < logits.rows; ++row)
    std::ranges::transform(logits.row(row), bias.row(row), logits.row(row).begin(), std::plus<>());
}

std::vector<float> draft_confidences(const Model& model, const Runtime& runtime, Arena& arena,
                                     Span2d<const float> hidden, std::span<const int32_t> previous) {
  TIDEPOOL_CHECK(previous.size() == hidden.rows, "a token before each row");
  const Arena::Scope scope(arena);
  const Math math(runtime, model.options().numerics);
  const Span2d<float> embeds = markov_rows(model, arena, previous);
  const Span2d<float> x = arena.matrix(hidden.rows, hidden.cols + embeds.cols);
  for (size_t row = 0; row < hidden.rows; ++row) {
    std::ranges::copy(hidden.row(row), x.row(row).begin());
    std::ranges::copy(embeds.row(row), x.row(row).begin() + static_cast<int64_t>(hidden.cols));
  }
  std::vector<float> result(hidden.rows);
  math.linear_unrounded(model.draft_head()->weights.confidence, x, Span2d<float>(result.data(), hidden.rows, 1));
  return result;
}

}  // namespace tidepool
