#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer.h"
#include "server/generation.h"
#include "server/json_fields.h"
#include "session/service.h"

namespace tidepool {

/// What reading a request needs of the server.
struct ApiContext {
  SamplingParams sampling;  ///< where the request says nothing
  uint64_t seed = 0;        ///< where the request gives none
  AnswerInfo info;
};

inline constexpr int64_t kChoicesMax = 8;
inline constexpr size_t kStopsMax = 16;

/// The fields that chat completions and completions share, OpenAI's and vLLM's: temperature, top_p, top_k, min_p,
/// penalties, logit_bias, seed, stop, stop_token_ids, ignore_eos, min_tokens, include_stop_str_in_output,
/// skip_special_tokens, n, best_of, priority, cache_salt, user_id, exact_cache. `request` holds the defaults.
void read_openai_fields(const JsonFields& body, ServiceRequest& request);

/// What keeps a request's cache apart from others': `cache_salt`, or else the user. Which of the two is part of it, so
/// that no user's name is another's salt. Empty without both.
[[nodiscard]] std::string read_cache_salt(const JsonFields& body, std::string_view user);

/// temperature, top_p and top_k.
void read_basic_sampling(const JsonFields& body, SamplingParams& sampling);
/// A string, or a list of up to 16 that are not empty.
[[nodiscard]] std::vector<std::string> read_stops(const JsonFields& body, std::string_view key);

/// `effort`: a tier's name or 1 to 100.
void read_effort(const JsonFields& holder, ChatRequest& chat);

/// The body of an answer's JSON schema, in the form of chat completions.
[[nodiscard]] Json make_schema_format(const JsonFields& format, std::string_view name);

/// How a stream tells usage.
struct StreamOptions {
  bool is_stream = false;
  bool includes_usage = false;
  bool is_usage_continuous = false;
};
/// `stream` and `stream_options`.
[[nodiscard]] StreamOptions read_stream_options(const JsonFields& body);

}  // namespace tidepool
