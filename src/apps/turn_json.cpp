#include "apps/turn_json.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "apps/json_values.h"
#include "session/prompt_cache_json.h"
#include "text/unicode.h"

namespace tidepool {
namespace {

Json ids_json(const std::vector<int32_t>& ids) {
  Json::Array array;
  array.reserve(ids.size());
  for (const int32_t id : ids)
    array.push_back(Json::make_integer(id));
  return Json::make_array(std::move(array));
}

std::vector<int32_t> output_ids(const TurnResult& result) {
  std::vector<int32_t> ids;
  ids.reserve(result.tokens.size());
  for (const SampledToken& token : result.tokens)
    ids.push_back(token.id);
  return ids;
}

/// What ended the answer when the finish reason leaves it open: the stop string, the stop token's id, or which limit.
Json stop_reason(const TurnRequest& request, const TurnResult& result) {
  switch (result.finish) {
    case FinishReason::kStopToken: return Json::make_integer(result.tokens.back().id);
    case FinishReason::kStopText:
      return result.stop_index ? json_text(request.output.stops[*result.stop_index]) : Json();
    case FinishReason::kMaxTokens: return json_text("max_tokens");
    case FinishReason::kContextFull: return json_text("context");
    case FinishReason::kCancelled: return Json();
  }
  return Json();
}

Json calls_json(const Completion& completion) {
  Json::Array calls;
  for (const Completion::Call& call : completion.calls) {
    Json object = Json::make_object();
    object.set("name", json_text(call.name));
    object.set("arguments", json_text(call.arguments));
    calls.push_back(std::move(object));
  }
  return Json::make_array(std::move(calls));
}

Json token_json(const LoadedModel& model, int32_t id, double logprob) {
  Json object = Json::make_object();
  object.set("id", Json::make_integer(id));
  if (model.has_tokenizer()) {
    const std::string_view bytes = model.tokenizer().token_bytes(id);
    object.set("token", json_text(replace_invalid_utf8(bytes)));
    Json::Array values;
    for (const char byte : bytes)
      values.push_back(json_count(static_cast<unsigned char>(byte)));
    object.set("bytes", Json::make_array(std::move(values)));
  }
  object.set("logprob", json_real(logprob));
  return object;
}

Json logprobs_json(const LoadedModel& model, const TurnResult& result) {
  Json::Array tokens;
  for (const SampledToken& token : result.tokens) {
    if (!token.logprobs) continue;
    Json object = token_json(model, token.id, token.logprobs->chosen);
    Json::Array top;
    for (const TokenLogprob& other : token.logprobs->top)
      top.push_back(token_json(model, other.id, other.logprob));
    object.set("top", Json::make_array(std::move(top)));
    tokens.push_back(std::move(object));
  }
  return Json::make_array(std::move(tokens));
}

Json usage_json(const LoadedModel& model, const TurnRequest& request, const TurnResult& result) {
  Json usage = Json::make_object();
  usage.set("prompt_tokens", Json::make_integer(result.cache.prompt_tokens));
  usage.set("completion_tokens", json_count(result.tokens.size()));
  usage.set("reasoning_tokens", json_count(result.reasoning_tokens));
  if (request.drafts.mode != DraftOptions::Mode::kOff) {
    usage.set("accepted_prediction_tokens", Json::make_integer(result.drafts.accepted_total()));
    usage.set("rejected_prediction_tokens", Json::make_integer(result.drafts.rejected_total()));
  }
  usage.set("prompt_cache", prompt_cache_json(result.cache, request.prompt, model));
  return usage;
}

Json counts_json(const std::vector<int64_t>& counts) {
  Json::Array array;
  for (const int64_t count : counts)
    array.push_back(Json::make_integer(count));
  return Json::make_array(std::move(array));
}

/// Steps with drafts, and what became of the drafts by their place.
Json drafts_json(const DraftCounts& drafts) {
  Json object = Json::make_object();
  object.set("steps", Json::make_integer(drafts.rounds));
  object.set("proposed", counts_json(drafts.proposed));
  object.set("accepted", counts_json(drafts.accepted));
  return object;
}

Json times_json(const TurnResult& result, const TurnTimes& times) {
  Json object = Json::make_object();
  object.set("load_s", json_real(times.load.count()));
  object.set("prompt_s", json_real(times.prompt.count()));
  object.set("answer_s", json_real(times.answer.count()));
  object.set("tokens_per_s", json_real(tokens_per_second(result, times)));
  return object;
}

}  // namespace

Json turn_json(const LoadedModel& model, const TurnRequest& request, const TurnResult& result, const TurnTimes& times) {
  Json object = Json::make_object();
  object.set("prompt_ids", ids_json(request.prompt));
  object.set("output_ids", ids_json(output_ids(result)));
  if (request.output.kind != OutputFormat::Kind::kIds) object.set("content", json_text(result.completion.content));
  if (request.output.kind == OutputFormat::Kind::kChat) {
    object.set("reasoning_content", json_text(result.completion.reasoning));
    object.set("tool_calls", calls_json(result.completion));
  }
  object.set("finish_reason", json_text(finish_reason_name(result.finish)));
  object.set("stop_reason", stop_reason(request, result));
  object.set("seed", Json::make_integer(static_cast<int64_t>(request.generation.sampling.seed)));
  if (request.generation.sampling.top_logprobs) object.set("logprobs", logprobs_json(model, result));
  object.set("usage", usage_json(model, request, result));
  if (request.drafts.mode != DraftOptions::Mode::kOff) object.set("drafts", drafts_json(result.drafts));
  object.set("times", times_json(result, times));
  return object;
}

double tokens_per_second(const TurnResult& result, const TurnTimes& times) {
  if (result.tokens.size() < 2 || times.answer.count() <= 0) return 0;
  return static_cast<double>(result.tokens.size() - 1) / times.answer.count();
}

std::string turn_summary(const TurnResult& result, const TurnTimes& times) {
  std::string summary = fmt::format("{} tokens in", result.cache.prompt_tokens);
  if (result.cache.hit_tokens > 0) summary += fmt::format(" ({} known)", result.cache.hit_tokens);
  summary += fmt::format(", {} out", result.tokens.size());
  const double speed = tokens_per_second(result, times);
  if (speed > 0) summary += fmt::format(", {:.3g} tokens/s", speed);
  if (const int64_t taken = result.drafts.accepted_total(); taken > 0) summary += fmt::format(", {} drafted", taken);
  if (result.finish == FinishReason::kMaxTokens) summary += "; ended by --max-tokens";
  if (result.finish == FinishReason::kContextFull) summary += "; the context is full";
  if (result.finish == FinishReason::kCancelled) summary += "; stopped";
  return summary;
}

}  // namespace tidepool
