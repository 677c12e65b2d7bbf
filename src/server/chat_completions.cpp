#include "server/chat_completions.h"

#include <algorithm>
#include <utility>

#include "server/chat_writers.h"

namespace tidepool::chat {
namespace {

void refuse_audio(const JsonFields& body) {
  if (body.has("audio")) body.fail("audio", "is not supported: this model writes text");
  const Json::Array* modalities = body.list("modalities");
  if (modalities == nullptr) return;
  for (const Json& modality : *modalities) {
    if (!modality.is_string() || modality.as_string() != "text") body.fail("modalities", "only \"text\" is supported");
  }
}

/// Types of fields that have no effect: a wrong one shows a client's mistake all the same.
void check_unused_fields(const JsonFields& body) {
  for (const std::string_view key : {"user", "user_id", "service_tier", "prompt_cache_key", "safety_identifier"})
    (void)body.string(key);
  (void)body.flag("store");
  (void)body.object("metadata");
}

std::optional<int64_t> read_max_tokens(const JsonFields& body) {
  const std::optional<int64_t> older = body.integer("max_tokens", 1);
  const std::optional<int64_t> newer = body.integer("max_completion_tokens", 1);
  if (older && newer) return std::min(*older, *newer);
  return older ? older : newer;
}

void read_logprobs(const JsonFields& body, ServiceRequest& request) {
  request.wants_logprobs = body.flag("logprobs").value_or(false);
  const std::optional<int64_t> top = body.integer("top_logprobs", 0, kTopLogprobsMax);
  if (!top) return;
  if (!request.wants_logprobs) body.fail("top_logprobs", "is possible only with \"logprobs\": true");
  request.sampling.top_logprobs = *top;
}

}  // namespace

ApiCall read_call(const Json& body, const ApiContext& context) {
  const JsonFields fields(body);
  refuse_audio(fields);
  check_unused_fields(fields);
  ServiceRequest request;
  request.sampling = context.sampling;
  request.sampling.seed = context.seed;
  ChatRequest chat = parse_chat_request(body);
  read_openai_fields(fields, request);
  request.max_tokens = read_max_tokens(fields);
  read_logprobs(fields, request);
  request.allows_parallel_calls = fields.flag("parallel_tool_calls").value_or(true);

  WriterOptions options;
  options.stream = read_stream_options(fields);
  options.choice_count = request.choice_count;
  options.is_thinking = chat.is_thinking && !chat.continues_last_message;
  options.has_logprobs = request.wants_logprobs;
  options.returns_ids = fields.flag("return_token_ids").value_or(false);
  request.prompt = std::move(chat);

  ApiCall call;
  call.is_stream = options.stream.is_stream;
  call.writer = make_writer(context.info, options);
  call.requests.push_back(std::move(request));
  return call;
}

}  // namespace tidepool::chat
