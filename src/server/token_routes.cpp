#include "server/token_routes.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <utility>

#include "base/error.h"
#include "server/answer.h"
#include "server/json_fields.h"
#include "server/json_writer.h"

namespace tidepool {
namespace {

void write_model(JsonWriter& json, std::string_view name, int64_t created, int64_t context_max) {
  const std::string time = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(created)));
  json.begin_object().field("id", name).field("object", "model").field("created", created);
  json.field("owned_by", "tidepool").field("max_model_len", context_max);
  json.field("type", "model").field("display_name", name).field("created_at", time).end_object();
}

}  // namespace

Json parse_request_json(std::string_view body) {
  try {
    return parse_json(body);
  } catch (const Error& error) {
    // Also what passes a limit of depth: the same request would fail the same way again.
    throw Error(ErrorCode::kInvalidArgument, fmt::format("the body is no JSON that can be read: {}", error.what()));
  }
}

std::string tokenize_body(const Json& body, const Service& service) {
  const JsonFields fields(body);
  ServiceRequest request;
  if (fields.has("messages")) {
    request.prompt = parse_chat_request(body);
  } else {
    RawPrompt prompt;
    prompt.content = fields.required_string("prompt");
    prompt.adds_bos = fields.flag("add_special_tokens").value_or(true);
    request.prompt = std::move(prompt);
  }
  const bool shows_strings = fields.flag("return_token_strs").value_or(false);
  const std::vector<int32_t> ids = service.encode(request);
  std::string out;
  JsonWriter json(out);
  json.begin_object().field("count", ids.size()).field("max_model_len", service.max_model_len());
  json.key("tokens").begin_array();
  for (const int32_t id : ids)
    json.integer(id);
  json.end_array().key("token_strs");
  if (shows_strings) {
    json.begin_array();
    for (const int32_t id : ids)
      json.string(shown_token(service.detokenize(std::span(&id, 1))));
    json.end_array();
  } else {
    json.null();
  }
  json.end_object();
  return out;
}

std::string detokenize_body(const Json& body, const Service& service) {
  const JsonFields fields(body);
  if (!fields.has("tokens")) fields.fail("tokens", "is missing");
  const std::vector<int32_t> ids = fields.ids("tokens");
  std::string out;
  JsonWriter(out).begin_object().field("prompt", shown_token(service.detokenize(ids))).end_object();
  return out;
}

std::string models_body(const ModelList& list) {
  std::string out;
  JsonWriter json(out);
  json.begin_object().field("object", "list").key("data").begin_array();
  for (const std::string& name : list.names)
    write_model(json, name, list.created, list.context_max);
  json.end_array().field("has_more", false).field("first_id", list.names.front());
  json.field("last_id", list.names.back()).end_object();
  return out;
}

std::string model_body(std::string_view name, int64_t created, int64_t context_max) {
  std::string out;
  JsonWriter json(out);
  write_model(json, name, created, context_max);
  return out;
}

}  // namespace tidepool
