#include "engine/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/sampler_random.h"

namespace tidepool {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStopToken:
    case FinishReason::kStopText: return "stop";
    case FinishReason::kMaxTokens:
    case FinishReason::kContextFull: return "length";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "unknown";
}

Generator::Generator(const Engine& engine, SequenceState& state, GenerationOptions options)
    : engine_(engine),
      state_(state),
      options_(std::move(options)),
      context_max_(options_.context_max.value_or(engine.model.config().max_position_embeddings)) {
  check_options();
  const auto vocab = static_cast<size_t>(engine_.model.config().vocab_size);
  logits_.reserve(vocab);
  if (!options_.sampling.has_penalties()) return;
  history_.emplace(vocab);
  for (const InputToken& token : state_.tokens())
    history_->add_prompt(token.id);
}

void Generator::check_options() const {
  const ModelConfig& config = engine_.model.config();
  const auto refuse = [](std::string_view field, int64_t value, std::string_view rule) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is {}; it must be {}", field, value, rule));
  };
  check_sampling_params(options_.sampling, static_cast<size_t>(config.vocab_size));
  if (options_.max_tokens && *options_.max_tokens < 1) refuse("max_tokens", *options_.max_tokens, "at least 1");
  if (options_.min_tokens < 0) refuse("min_tokens", options_.min_tokens, "at least 0");
  if (options_.max_tokens && options_.min_tokens > *options_.max_tokens)
    refuse("min_tokens", options_.min_tokens, fmt::format("at most max_tokens, {}", *options_.max_tokens));
  if (options_.chunk < 1) refuse("chunk", 0, "at least 1");
  if (context_max_ < 2 || context_max_ > config.max_position_embeddings) {
    refuse("max_model_len", context_max_,
           fmt::format("from 2 to {}, what the model was made for", config.max_position_embeddings));
  }
  for (const int32_t id : options_.stop_ids)
    if (id < 0 || id >= config.vocab_size)
      refuse("a stop id", id, fmt::format("a token of the model, 0 to {}", config.vocab_size - 1));
}

void Generator::check_prompt(std::span<const InputToken> prompt) const {
  const int64_t vocab = engine_.model.config().vocab_size;
  const int64_t length = state_.length() + static_cast<int64_t>(prompt.size());
  if (length >= context_max_) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the prompt has {} tokens and the context {}, so no token of an answer fits behind it; "
                    "shorten the prompt{}",
                    length, context_max_,
                    context_max_ < engine_.model.config().max_position_embeddings ? ", or raise --max-model-len" : ""));
  }
  for (const InputToken& token : prompt) {
    if (token.id >= 0 && token.id < vocab) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the prompt has token {}; the model has tokens 0 to {}", token.id, vocab - 1));
  }
}

bool Generator::read_prompt(std::span<const InputToken> prompt, const Progress& progress, const std::stop_token& stop) {
  TIDEPOOL_CHECK(!prompt.empty() && !last_token_ && logits_.empty(), "a prompt is read once and has a token");
  check_prompt(prompt);
  if (stop.stop_requested()) return false;
  if (history_) {
    for (const InputToken& token : prompt)
      history_->add_prompt(token.id);
  }
  const PrefillOptions how{.replay = options_.replay, .chunk = options_.chunk};
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

SampledToken Generator::sample() {
  SampleRequest request;
  request.logits = logits_;
  request.params = &options_.sampling;
  request.history = history_ ? &*history_ : nullptr;
  request.constraint = options_.constraint;
  if (generated_count_ < options_.min_tokens) request.forbidden = options_.stop_ids;
  request.draw = random_unit(options_.sampling.seed, static_cast<uint64_t>(generated_count_));
  try {
    return sampler_.sample(request);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("token {} of the output, position {}: {}", generated_count_ + 1,
                                          state_.length(), error.what()));
  }
}

std::optional<FinishReason> Generator::finish_after(int32_t id) const {
  if (std::ranges::find(options_.stop_ids, id) != options_.stop_ids.end()) return FinishReason::kStopToken;
  if (options_.max_tokens && generated_count_ >= *options_.max_tokens) return FinishReason::kMaxTokens;
  if (state_.length() + 1 >= context_max_) return FinishReason::kContextFull;  // 1: the token just taken
  return std::nullopt;
}

GenerationStep Generator::next(const std::stop_token& stop) {
  if (stop.stop_requested()) return {std::nullopt, FinishReason::kCancelled};
  if (last_token_) run_last_token();
  TIDEPOOL_CHECK(!logits_.empty(), "a generation reads its prompt first");
  GenerationStep step;
  step.token = sample();
  const int32_t id = step.token->id;
  ++generated_count_;
  if (history_) history_->add_generated(id);
  if (options_.constraint != nullptr) options_.constraint->accept(id);
  step.finish = finish_after(id);
  last_token_ = id;
  return step;
}

}  // namespace tidepool
