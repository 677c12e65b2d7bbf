#include "engine/generator.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace tidepool {

Generator::Generator(const Engine& engine, SequenceState& state, GenerationOptions options)
    : engine_(engine), state_(state), continuation_(engine.model.config(), std::move(options)) {
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

/// Runs the token taken last, for the logits behind it.
void Generator::run_last_token() {
  const Arena::Scope scope(engine_.arena);
  const std::array<InputToken, 1> token = {InputToken{*last_token_, false}};
  const std::array<ForwardRequest, 1> request = {ForwardRequest{&state_, token, 0, 1}};
  const Span2d<const float> logits = forward(engine_.model, engine_.runtime, engine_.arena, request);
  logits_.assign(logits.row(0).begin(), logits.row(0).end());
  last_token_.reset();
}

GenerationStep Generator::next(const std::stop_token& stop) {
  if (stop.stop_requested()) return {std::nullopt, FinishReason::kCancelled};
  if (last_token_) run_last_token();
  TIDEPOOL_CHECK(!logits_.empty(), "a generation reads its prompt first");
  GenerationStep step = continuation_.take(sampler_, logits_, state_.length());
  last_token_ = step.token->id;
  return step;
}

}  // namespace tidepool
