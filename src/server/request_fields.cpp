#include "server/request_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <utility>

namespace tidepool {
namespace {

constexpr double kPenaltyMax = 2;
constexpr int64_t kSeedMax = std::numeric_limits<int64_t>::max();
/// The smallest positive number: bounds that exclude 0 itself.
constexpr double kAboveZero = std::numeric_limits<double>::denorm_min();

std::pair<int32_t, double> read_bias(const JsonMember& member, const std::string& path) {
  std::pair<int32_t, double> bias;
  const char* const end = member.key.data() + member.key.size();
  const auto [stop, error] = std::from_chars(member.key.data(), end, bias.first);
  if (error != std::errc() || stop != end || bias.first < 0) refuse_field(path, "has a key that is no token id");
  const Json::Kind kind = member.value.kind();
  if (kind != Json::Kind::kInteger && kind != Json::Kind::kReal) refuse_field(path, "has a value that is no number");
  bias.second = member.value.as_double();
  if (!(bias.second >= -kLogitBiasMax && bias.second <= kLogitBiasMax)) {
    refuse_field(path, fmt::format("has a value that is not in -{0} to {0}", kLogitBiasMax));
  }
  return bias;
}

void read_logit_bias(const JsonFields& body, SamplingParams& sampling) {
  const std::optional<JsonFields> biases = body.object("logit_bias");
  if (!biases) return;
  for (const JsonMember& member : biases->json().as_object())
    sampling.logit_bias.push_back(read_bias(member, biases->own_path()));
}

void read_penalties(const JsonFields& body, SamplingParams& sampling) {
  if (const auto value = body.number("presence_penalty", -kPenaltyMax, kPenaltyMax)) sampling.presence_penalty = *value;
  if (const auto value = body.number("frequency_penalty", -kPenaltyMax, kPenaltyMax)) {
    sampling.frequency_penalty = *value;
  }
  if (const auto value = body.number("repetition_penalty", kAboveZero, kPenaltyMax)) {
    sampling.repetition_penalty = *value;
  }
}

}  // namespace

void read_basic_sampling(const JsonFields& body, SamplingParams& sampling) {
  if (const auto value = body.number("temperature", 0, 2)) sampling.temperature = *value;
  if (const auto value = body.number("top_p", kAboveZero, 1)) sampling.top_p = *value;
  if (const auto value = body.integer("top_k", -1)) sampling.top_k = *value;
}

std::string read_cache_salt(const JsonFields& body, std::string_view user) {
  const std::string salt = body.string_or("cache_salt", "");
  if (!salt.empty()) return "salt:" + salt;
  return user.empty() ? std::string() : "user:" + std::string(user);
}

std::vector<std::string> read_stops(const JsonFields& body, std::string_view key) {
  std::vector<std::string> stops;
  const Json* value = body.find(key);
  if (value == nullptr) return stops;
  if (value->is_string()) {
    if (value->as_string().empty()) body.fail(key, "must not be empty");
    return {value->as_string()};
  }
  if (!value->is_array())
    body.fail(key, fmt::format("must be a string or a list of strings, not {}", value->kind_name()));
  const Json::Array& list = value->as_array();
  if (list.size() > kStopsMax) body.fail(key, fmt::format("has {} strings; at most {}", list.size(), kStopsMax));
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = element_path(body.path(key), i);
    if (!list[i].is_string()) refuse_field(path, fmt::format("must be a string, not {}", list[i].kind_name()));
    if (list[i].as_string().empty()) refuse_field(path, "must not be empty");
    stops.push_back(list[i].as_string());
  }
  return stops;
}

void read_effort(const JsonFields& holder, ChatRequest& chat) {
  const Json* effort = holder.find("effort");
  if (effort == nullptr) return;
  const std::optional<int> number = try_request_effort(*effort);
  if (!number) holder.fail("effort", "is none of minimal, low, medium, high, xhigh, max, ultra, 1 to 100");
  chat.effort = *number;
}

Json make_schema_format(const JsonFields& format, std::string_view name) {
  const std::optional<JsonFields> schema = format.object("schema");
  if (!schema) format.fail("schema", "is missing");
  Json inner = Json::make_object();
  inner.set("name", Json::make_string(format.string_or("name", name)));
  inner.set("schema", schema->json());
  if (const std::optional<bool> is_strict = format.flag("strict")) inner.set("strict", Json::make_bool(*is_strict));
  Json wanted = Json::make_object();
  wanted.set("type", Json::make_string("json_schema"));
  wanted.set("json_schema", std::move(inner));
  return wanted;
}

StreamOptions read_stream_options(const JsonFields& body) {
  StreamOptions result;
  result.is_stream = body.flag("stream").value_or(false);
  const std::optional<JsonFields> options = body.object("stream_options");
  if (!options) return result;
  if (!result.is_stream) body.fail("stream_options", "is possible only with \"stream\": true");
  result.includes_usage = options->flag("include_usage").value_or(false);
  result.is_usage_continuous = options->flag("continuous_usage_stats").value_or(false);
  return result;
}

void read_openai_fields(const JsonFields& body, ServiceRequest& request) {
  read_basic_sampling(body, request.sampling);
  if (const auto value = body.number("min_p", 0, 1)) request.sampling.min_p = *value;
  read_penalties(body, request.sampling);
  read_logit_bias(body, request.sampling);
  if (const auto seed = body.integer("seed", 0, kSeedMax)) request.sampling.seed = static_cast<uint64_t>(*seed);
  request.stops = read_stops(body, "stop");
  request.stop_ids = body.ids("stop_token_ids");
  request.ignores_eos = body.flag("ignore_eos").value_or(false);
  request.includes_stop_text = body.flag("include_stop_str_in_output").value_or(false);
  request.shows_special_tokens = !body.flag("skip_special_tokens").value_or(true);
  request.min_tokens = body.integer("min_tokens", 0).value_or(0);
  request.choice_count = static_cast<size_t>(body.integer("n", 1, kChoicesMax).value_or(1));
  if (const auto best_of = body.integer("best_of"); best_of && *best_of != static_cast<int64_t>(request.choice_count)) {
    body.fail("best_of", "is possible only when it equals n");
  }
  request.priority = static_cast<int>(body.integer("priority", INT32_MIN, INT32_MAX).value_or(0));
  request.cache_salt = read_cache_salt(body, body.string_or("user_id", ""));
  request.wants_exact_cache = body.flag("exact_cache").value_or(false);
}

}  // namespace tidepool
