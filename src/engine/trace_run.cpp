#include "engine/trace_run.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "base/check.h"
#include "engine/prefill.h"
#include "engine/sampler.h"
#include "model/draft.h"

namespace tidepool {
namespace {

void request_keys(const WantedTensor& wanted, const ModelConfig& config, TraceRecorder& recorder) {
  recorder.request(TraceRecorder::key_of(wanted.base, wanted.layer));
  if (wanted.base == "next_id" || wanted.base == "rel_vs_prefill") recorder.request("logits");
  if (wanted.base == "output_ids" || wanted.base == "top2_gap") recorder.request("logits");
  if (wanted.base.starts_with("main_hidden") && config.dspark) {
    for (const int64_t tap : config.dspark->target_layer_ids)
      recorder.request(fmt::format("main_hidden.{}", tap));
  }
  if (wanted.base == "engram_hash" && config.engram) {
    for (size_t slot = 0; slot < config.engram->layer_ids.size(); ++slot) {
      recorder.request(fmt::format("engram_hash.{}", slot));
    }
  }
}

/// Returns the most likely token behind the prompt.
int64_t run_prompt(const Model& model, const Runtime& runtime, Arena& arena, SequenceState& state,
                   std::span<const InputToken> tokens, const TraceOptions& options, ImageRowSource* images,
                   TraceRecorder& recorder) {
  PrefillOptions prefill_options;
  prefill_options.replay = options.replay;
  prefill_options.chunk = options.chunk;
  prefill_options.logits = recorder.wants("logits") ? PrefillOptions::Logits::kAll : PrefillOptions::Logits::kLast;
  prefill_options.probe = &recorder;
  prefill_options.images = images;
  int64_t most_likely = -1;
  const auto keep = [&](int64_t first, Span2d<const float> logits, size_t) {
    recorder.record_logits(first, logits);
    if (logits.rows > 0) most_likely = argmax(logits.row(logits.rows - 1));
    return true;
  };
  TIDEPOOL_CHECK(prefill(model, runtime, arena, state, tokens, prefill_options, keep), "nothing stops a trace");
  return most_likely;
}

/// One token behind what the state holds; keeps its logits and returns their argmax.
int64_t run_token(const Model& model, const Runtime& runtime, Arena& arena, SequenceState& state, InputToken token,
                  TraceRecorder& recorder) {
  const Arena::Scope scope(arena);
  const int64_t position = state.length();
  const ForwardRequest request{&state, {&token, 1}, position, 1};
  const Span2d<const float> logits = forward(model, runtime, arena, {&request, 1}, &recorder);
  recorder.record_logits(position, logits);
  return argmax(logits.row(0));
}

void run_greedy(const Model& model, const Runtime& runtime, Arena& arena, SequenceState& state, int64_t next,
                size_t count, TraceRun& run) {
  while (true) {
    run.output_ids[state.length() - 1] = static_cast<double>(next);
    if (run.output_ids.size() >= count) return;
    next = run_token(model, runtime, arena, state, {static_cast<int32_t>(next), false}, run.recorder);
  }
}

void compare_with_prefill(const Model& model, const Runtime& runtime, Arena& arena, const TraceInput& input,
                          const TraceOptions& options, ImageRowSource* images, TraceRun& run) {
  TraceRecorder whole;
  whole.request("logits");
  std::set<int64_t> positions;
  for (const auto& [position, row] : run.recorder.floats("logits"))
    positions.insert(position);
  whole.limit_positions(positions);
  SequenceState state = model.new_sequence();
  (void)run_prompt(model, runtime, arena, state, input.tokens, options, images, whole);
  for (const auto& [position, row] : run.recorder.floats("logits")) {
    if (position < input.prompt_length - 1) continue;
    const std::vector<float>& expected = whole.floats("logits").at(position);
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      difference += std::pow(static_cast<double>(row[i]) - static_cast<double>(expected[i]), 2);
      norm += std::pow(static_cast<double>(expected[i]), 2);
    }
    run.rel_vs_prefill[position] = std::sqrt(difference / norm);
  }
}

/// Proposes a block behind the last position and records it there. It begins with `anchor` and each draft follows the
/// most likely one before it, but where the case says what is followed, so that one near tie does not make all that
/// comes behind it another text.
void propose(const Model& model, const Runtime& runtime, Arena& arena, const TraceInput& input, SequenceState& state,
             int64_t anchor, TraceRecorder& recorder) {
  const Arena::Scope scope(arena);
  const int64_t position = state.length() - 1;
  const size_t width = 1 + model.draft_head()->block;
  const auto begin = static_cast<size_t>(position - input.prompt_length + 1) * width;
  const auto followed = [&](size_t place, int64_t own) {
    const int64_t id = input.draft_ids.empty() ? -1 : input.draft_ids[begin + place];
    return static_cast<int32_t>(id < 0 ? own : id);
  };
  std::vector<int64_t> ids{anchor};
  std::vector<int32_t> previous{followed(0, anchor)};
  const DraftRequest request{&state, previous.front()};
  const DraftBlocks blocks = run_draft_blocks(model, runtime, arena, {&request, 1});
  const auto record_block = [&](std::string_view name) {
    std::vector<float> all;
    for (size_t i = 0; i < blocks.logits.rows; ++i)
      all.insert(all.end(), blocks.logits.row(i).begin(), blocks.logits.row(i).end());
    recorder.record(name, -1, position, {all.data(), 1, all.size()});
  };
  record_block("draft_base_logits");
  for (size_t i = 0; i < blocks.logits.rows; ++i) {
    add_markov_bias(model, runtime, arena, {&previous.back(), 1}, blocks.logits.row_range(i, 1));
    ids.push_back(argmax(blocks.logits.row(i)));
    previous.push_back(followed(i + 1, ids.back()));
  }
  previous.pop_back();
  record_block("draft_logits");
  const std::vector<float> confidence = draft_confidences(model, runtime, arena, blocks.hidden, previous);
  recorder.record("confidence", -1, position, {confidence.data(), 1, confidence.size()});
  recorder.record_ints("anchor_ids", -1, position, std::span(ids).first(1));
  recorder.record_ints("draft_ids", -1, position, ids);
}

/// Makes the run's recorders keep what `outputs` are made of.
void request_outputs(const TraceInput& input, const std::vector<WantedTensor>& outputs, const ModelConfig& config,
                     TraceRun& run) {
  for (const WantedTensor& wanted : outputs) {
    if (wanted.image < 0) {
      request_keys(wanted, config, run.recorder);
    } else if (static_cast<size_t>(wanted.image) < run.images.size()) {
      run.images[static_cast<size_t>(wanted.image)].request(TraceRecorder::key_of(wanted.base, wanted.layer));
    }
  }
  if (input.rows) run.recorder.limit_positions({input.rows->begin(), input.rows->end()});
}

/// Tokens that a greedy case asks for.
size_t greedy_length(const TraceInput& input, const std::vector<WantedTensor>& outputs) {
  size_t count = 0;
  for (const WantedTensor& wanted : outputs) {
    if (input.kind == TraceKind::kGreedy && !wanted.shape.empty())
      count = std::max(count, static_cast<size_t>(wanted.shape[0]));
  }
  return count;
}

}  // namespace

void run_trace(const Model& model, const Runtime& runtime, const TraceInput& input, const TraceOptions& options,
               const std::vector<WantedTensor>& outputs, TraceRun& run) {
  request_outputs(input, outputs, model.config(), run);
  std::optional<TraceImageRows> rows;
  if (!input.images.empty()) rows.emplace(model, runtime, input.images, run.images);
  ImageRowSource* images = rows ? &*rows : nullptr;
  Arena arena;
  SequenceState state = model.new_sequence();
  const std::span<const InputToken> tokens(input.tokens);
  const auto prompt = static_cast<size_t>(input.prompt_length);
  int64_t next = run_prompt(model, runtime, arena, state, tokens.first(prompt), options, images, run.recorder);
  if (input.kind == TraceKind::kDraft) propose(model, runtime, arena, input, state, next, run.recorder);
  for (const InputToken token : tokens.subspan(prompt)) {
    next = run_token(model, runtime, arena, state, token, run.recorder);
    if (input.kind == TraceKind::kDraft) propose(model, runtime, arena, input, state, next, run.recorder);
  }
  if (const size_t count = greedy_length(input, outputs); count > 0)
    run_greedy(model, runtime, arena, state, next, count, run);
  const bool wants_rel =
      std::ranges::any_of(outputs, [](const WantedTensor& wanted) { return wanted.base == "rel_vs_prefill"; });
  if (wants_rel) compare_with_prefill(model, runtime, arena, input, options, images, run);
}

}  // namespace tidepool
