#include "server/answer.h"

#include <fmt/format.h>

#include "server/json_writer.h"
#include "text/unicode.h"

namespace tidepool {
namespace {

void write_token(JsonWriter& json, const AnswerInfo& info, const TokenLogprob& token) {
  const std::string bytes = info.decode(std::span(&token.id, 1));
  json.field("token", shown_token(bytes)).key("logprob").number(token.logprob).key("bytes").begin_array();
  for (const char byte : bytes)
    json.integer(static_cast<unsigned char>(byte));
  json.end_array();
}

}  // namespace

void UsageTally::start(const PromptStart& start) {
  prompt_tokens_ += start.cache.prompt_tokens;
  cached_tokens_ += start.cache.hit_tokens;
  if (!first_) first_ = start;
}

int64_t UsageTally::completion_tokens() const {
  int64_t finished = 0;
  bool is_over = true;
  for (const std::optional<ServiceFinish>& finish : finishes_) {
    if (finish) finished += finish->usage.completion_tokens;
    is_over = is_over && finish;
  }
  return is_over ? finished : running_tokens_;
}

int64_t UsageTally::reasoning_tokens() const {
  int64_t tokens = 0;
  for (const std::optional<ServiceFinish>& finish : finishes_) {
    if (finish) tokens += finish->usage.reasoning_tokens;
  }
  return tokens;
}

DraftCounts UsageTally::drafts() const {
  DraftCounts drafts;
  for (const std::optional<ServiceFinish>& finish : finishes_) {
    if (finish) drafts.add(finish->usage.drafts);
  }
  return drafts;
}

void write_output_details(JsonWriter& json, const UsageTally& tally) {
  json.field("reasoning_tokens", tally.reasoning_tokens());
  const DraftCounts drafts = tally.drafts();
  json.field("accepted_prediction_tokens", drafts.accepted_total());
  json.field("rejected_prediction_tokens", drafts.rejected_total());
}

void write_prompt_cache(JsonWriter& json, const UsageTally& tally) {
  if (tally.first()) json.key("prompt_cache").json(tally.first()->prompt_cache);
}

void write_openai_usage(JsonWriter& json, const UsageTally& tally) {
  const int64_t prompt = tally.prompt_tokens();
  const int64_t completion = tally.completion_tokens();
  json.begin_object().field("prompt_tokens", prompt).field("completion_tokens", completion);
  json.field("total_tokens", prompt + completion);
  json.key("prompt_tokens_details").begin_object().field("cached_tokens", tally.cached_tokens()).end_object();
  json.key("completion_tokens_details").begin_object();
  write_output_details(json, tally);
  json.end_object();
  json.field("prompt_cache_hit_tokens", tally.cached_tokens());
  json.field("prompt_cache_miss_tokens", prompt - tally.cached_tokens());
  write_prompt_cache(json, tally);
  json.end_object();
}

void write_token_logprobs(JsonWriter& json, const AnswerInfo& info, const std::vector<SampledToken>& tokens) {
  json.begin_array();
  for (const SampledToken& token : tokens) {
    if (!token.logprobs) continue;
    json.begin_object();
    write_token(json, info, {token.id, token.logprobs->chosen});
    json.key("top_logprobs").begin_array();
    for (const TokenLogprob& top : token.logprobs->top) {
      json.begin_object();
      write_token(json, info, top);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
}

void ReasoningSplit::add(std::span<const SampledToken> tokens, std::span<const CompletionEvent> events,
                         AnswerLogprobs& out) {
  // Without a token for the marker, the first sign of an answer ends the reasoning.
  for (const CompletionEvent& event : events) {
    if (event.kind != CompletionEvent::Kind::kReasoning && !think_end_) is_reasoning_ = false;
  }
  for (const SampledToken& token : tokens) {
    (is_reasoning_ ? out.reasoning : out.content).push_back(token);
    if (think_end_ && token.id == *think_end_) is_reasoning_ = false;
  }
}

void AnswerText::add(const CompletionEvent& event) {
  switch (event.kind) {
    case CompletionEvent::Kind::kReasoning: reasoning += event.text; return;
    case CompletionEvent::Kind::kContent: content += event.text; return;
    case CompletionEvent::Kind::kToolCallStart: {
      AnswerCall call;
      call.name = event.text;
      call.space = event.space;
      call.bare_name = event.name;
      calls.push_back(std::move(call));
      return;
    }
    case CompletionEvent::Kind::kArguments: calls.back().arguments += event.text; return;
    case CompletionEvent::Kind::kToolCallEnd: calls.back().is_complete = true; return;
    case CompletionEvent::Kind::kStop: return;
  }
}

std::string make_item_id(std::string_view prefix, std::string_view key, size_t index) {
  return fmt::format("{}{}{:02}", prefix, key, index);
}

std::string_view openai_finish_reason(const ServiceFinish& finish) {
  switch (finish.reason) {
    case FinishReason::kStopToken:
    case FinishReason::kStopText: return finish.has_calls && !finish.stop_index ? "tool_calls" : "stop";
    case FinishReason::kMaxTokens:
    case FinishReason::kContextFull: return "length";
    case FinishReason::kCancelled: return "aborted";
  }
  return "stop";
}

std::string shown_token(std::string_view bytes) {
  return replace_invalid_utf8(bytes);
}

}  // namespace tidepool
