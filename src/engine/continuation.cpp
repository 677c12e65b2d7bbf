#include "engine/continuation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

void check_generation_options(const ModelConfig& config, const GenerationOptions& options) {
  const auto refuse = [](std::string_view field, int64_t value, std::string_view rule) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} is {}; it must be {}", field, value, rule));
  };
  const auto require_tokens = [&](std::string_view field, const std::vector<int32_t>& ids) {
    for (const int32_t id : ids)
      if (id < 0 || id >= config.vocab_size)
        refuse(field, id, fmt::format("a token of the model, 0 to {}", config.vocab_size - 1));
  };
  check_sampling_params(options.sampling, static_cast<size_t>(config.vocab_size));
  if (options.max_tokens && *options.max_tokens < 1) refuse("max_tokens", *options.max_tokens, "at least 1");
  if (options.min_tokens < 0) refuse("min_tokens", options.min_tokens, "at least 0");
  if (options.max_tokens && options.min_tokens > *options.max_tokens)
    refuse("min_tokens", options.min_tokens, fmt::format("at most max_tokens, {}", *options.max_tokens));
  if (options.chunk < 1) refuse("chunk", 0, "at least 1");
  const int64_t context_max = options.context_max.value_or(config.max_position_embeddings);
  if (context_max < 2 || context_max > config.max_position_embeddings) {
    refuse("max_model_len", context_max,
           fmt::format("from 2 to {}, what the model was made for", config.max_position_embeddings));
  }
  require_tokens("a stop id", options.stop_ids);
  require_tokens("a recorded token", options.forced);
}

std::string no_room_message(const ModelConfig& config, int64_t length, int64_t context_max) {
  return fmt::format(
      "the prompt has {} tokens and the context {}, so no token of an answer fits behind it; "
      "shorten the prompt{}",
      length, context_max, context_max < config.max_position_embeddings ? ", or raise --max-model-len" : "");
}

Continuation::Continuation(const ModelConfig& config, GenerationOptions options)
    : options_(std::move(options)), context_max_(options_.context_max.value_or(config.max_position_embeddings)) {
  check_generation_options(config, options_);
  if (options_.sampling.has_penalties()) history_.emplace(static_cast<size_t>(config.vocab_size));
}

void Continuation::add_prompt(std::span<const InputToken> tokens) {
  if (!history_) return;
  for (const InputToken& token : tokens)
    history_->add_prompt(token.id);
}

/// What token `index` of the output depends on, constraint and draws aside.
SampleRequest Continuation::request_at(std::span<const float> logits, int64_t index) const {
  SampleRequest request;
  request.logits = logits;
  request.params = &options_.sampling;
  request.history = history_ ? &*history_ : nullptr;
  if (index < options_.min_tokens) request.forbidden = options_.stop_ids;
  return request;
}

SampledToken Continuation::sample(Sampler& sampler, std::span<const float> logits, int64_t length,
                                  const DraftedToken* drafted) const {
  SampleRequest request = request_at(logits, count_);
  request.constraint = options_.constraint;
  request.draw = random_unit(options_.sampling.seed, static_cast<uint64_t>(count_));
  request.drafted = drafted;
  if (drafted != nullptr)
    request.stands_draw = random_unit(options_.sampling.seed, static_cast<uint64_t>(count_), RandomUse::kDraftStands);
  if (!options_.forced.empty()) request.forced = options_.forced[static_cast<size_t>(count_) % options_.forced.size()];
  try {
    return sampler.sample(request);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("token {} of the output, position {}: {}", count_ + 1, length, error.what()));
  }
}

std::optional<FinishReason> Continuation::finish_after(int32_t id, int64_t length) const {
  if (std::ranges::find(options_.stop_ids, id) != options_.stop_ids.end()) return FinishReason::kStopToken;
  if (options_.max_tokens && count_ >= *options_.max_tokens) return FinishReason::kMaxTokens;
  if (length + 1 >= context_max_) return FinishReason::kContextFull;  // 1: the token just taken
  return std::nullopt;
}

std::optional<DraftedToken> Continuation::draft(Sampler& sampler, std::span<const float> logits, size_t ahead,
                                                std::span<float> weights) const {
  const int64_t index = count_ + static_cast<int64_t>(ahead);
  SampleRequest request = request_at(logits, index);
  request.draw = random_unit(options_.sampling.seed, static_cast<uint64_t>(index), RandomUse::kDraft);
  request.constraint = draft_constraint();
  return sampler.draft(request, weights);
}

LogitsConstraint* Continuation::draft_constraint() const {
  LogitsConstraint* constraint = options_.constraint;
  return constraint != nullptr && constraint->can_rollback() ? constraint : nullptr;
}

void Continuation::follow_draft(int32_t id) const {
  if (LogitsConstraint* constraint = draft_constraint()) constraint->accept(id);
}

void Continuation::end_drafts(size_t count) const {
  if (LogitsConstraint* constraint = draft_constraint()) constraint->rollback(count);
}

GenerationStep Continuation::take(Sampler& sampler, std::span<const float> logits, int64_t length,
                                  const DraftedToken* drafted) {
  GenerationStep step;
  step.token = sample(sampler, logits, length, drafted);
  const int32_t id = step.token->id;
  ++count_;
  if (history_) history_->add_generated(id);
  if (options_.constraint != nullptr) options_.constraint->accept(id);
  step.finish = finish_after(id, length);
  return step;
}

}  // namespace tidepool
