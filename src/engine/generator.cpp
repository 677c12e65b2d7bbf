#include "engine/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace tidepool {

Generator::Generator(const Engine& engine, SequenceState& state, GenerationOptions options)
    : Generator(engine, state, std::move(options), Drafting{}) {}

Generator::Generator(const Engine& engine, SequenceState& state, GenerationOptions options, const Drafting& drafting)
    : engine_(engine), state_(state), continuation_(engine.model.config(), std::move(options)), drafting_(drafting) {
  if (!drafting_.clock) drafting_.clock = steady_draft_clock();
  logits_.reserve(static_cast<size_t>(engine_.model.config().vocab_size));
  continuation_.add_prompt(state_.tokens());
}

void Generator::check_prompt(std::span<const InputToken> prompt) const {
  const ModelConfig& config = engine_.model.config();
  const int64_t length = state_.length() + static_cast<int64_t>(prompt.size());
  if (length >= context_max()) throw Error(ErrorCode::kInvalidArgument, no_room_message(config, length, context_max()));
  for (const InputToken& token : prompt) {
    if (token.id >= 0 && token.id < config.vocab_size) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the prompt has token {}; the model has tokens 0 to {}", token.id, config.vocab_size - 1));
  }
}

bool Generator::read_prompt(std::span<const InputToken> prompt, const Progress& progress, const std::stop_token& stop,
                            ImageRowSource* images) {
  TIDEPOOL_CHECK(!prompt.empty() && !last_token_ && logits_.empty(), "a prompt is read once and has a token");
  check_prompt(prompt);
  if (stop.stop_requested()) return false;
  continuation_.add_prompt(prompt);
  const PrefillOptions how{
      .replay = continuation_.options().replay, .chunk = continuation_.options().chunk, .images = images};
  return prefill(engine_.model, engine_.runtime, engine_.arena, state_, prompt, how,
                 [&](int64_t, Span2d<const float> logits, size_t tokens_done) {
                   if (logits.rows > 0) {
                     const std::span<const float> last = logits.row(logits.rows - 1);
                     logits_.assign(last.begin(), last.end());
                   }
                   if (progress) progress(tokens_done, prompt.size());
                   return !stop.stop_requested();
                 });
}

/// Drafts behind the token taken last, as many as are worth reading.
void Generator::propose() {
  survival_.clear();
  step_ = {};
  speculation_.drafts().clear();
  DraftPlanner* planner = drafting_.planner;
  if (drafting_.drafter == nullptr || (planner != nullptr && !planner->wants_drafts(1))) return;
  const size_t limit = drafts_limit(engine_.model, state_, continuation_);
  const size_t most = planner == nullptr ? std::min(limit, drafting_.length) : limit;
  if (most == 0) return;
  const std::chrono::duration<double> start = drafting_.clock();
  Drafts& drafts = speculation_.drafts();
  const DraftingRequest request{&state_, &continuation_, *last_token_, most, &drafts};
  drafting_.drafter->propose({&request, 1});
  if (planner == nullptr || drafts.size() == 0) return;
  step_.is_drafted = true;
  step_.draft_seconds = (drafting_.clock() - start).count();
  const std::span<const double> survival = drafts.survival();
  drafts.shorten(planner->choose_lengths({&survival, 1}).front());
  survival_.assign(drafts.survival().begin(), drafts.survival().end());
}

/// Reads the token taken last and its drafts, for the logits behind each.
void Generator::read_rows() {
  propose();
  const Arena::Scope scope(engine_.arena);
  const std::vector<InputToken> tokens = speculation_.begin(state_, *last_token_);
  const bool keeps_draft_rows = drafting_.planner == nullptr || drafting_.planner->wants_rows(1);
  const std::array<ForwardRequest, 1> request = {
      ForwardRequest{&state_, tokens, 0, tokens.size(), {}, keeps_draft_rows}};
  const std::chrono::duration<double> start = drafting_.clock();
  const Span2d<const float> logits = forward(engine_.model, engine_.runtime, engine_.arena, request);
  step_.seconds = (drafting_.clock() - start).count();
  step_.rows = tokens.size();
  step_.tokens = 0;
  logits_.assign(logits.data, logits.data + logits.rows * logits.cols);
}

void Generator::settle() {
  const size_t accepted = speculation_.settle(state_, draft_counts_);
  if (drafting_.planner == nullptr) return;
  drafting_.planner->note_drafts(survival_, accepted);
  if (step_.tokens > 0) drafting_.planner->note(step_);
}

GenerationStep Generator::next(const std::stop_token& stop) {
  if (stop.stop_requested()) {
    end();
    return {std::nullopt, FinishReason::kCancelled};
  }
  if (!last_token_) {
    TIDEPOOL_CHECK(!logits_.empty(), "a generation reads its prompt first");
    GenerationStep first = continuation_.take(sampler_, logits_, state_.length());
    last_token_ = first.token->id;
    return first;
  }
  if (!speculation_.is_under_way()) read_rows();
  const auto vocab = static_cast<size_t>(engine_.model.config().vocab_size);
  const std::span<const float> logits = std::span(logits_).subspan(speculation_.row() * vocab, vocab);
  GenerationStep step = speculation_.take(continuation_, sampler_, logits);
  last_token_ = step.token->id;
  ++step_.tokens;
  if (!speculation_.goes_on()) settle();
  return step;
}

void Generator::end() {
  if (speculation_.is_under_way()) settle();
}

}  // namespace tidepool
