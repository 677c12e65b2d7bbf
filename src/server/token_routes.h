#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "session/service.h"
#include "text/json.h"

namespace tidepool {

/// A request's body. Throws Error(kInvalidArgument) saying where it is no JSON, or what limit it passes.
[[nodiscard]] Json parse_request_json(std::string_view body);

/// {"count", "max_model_len", "tokens", "token_strs"} of `prompt` or `messages`, as vLLM answers /tokenize.
[[nodiscard]] std::string tokenize_body(const Json& body, const Service& service);
/// {"prompt"} of `tokens`, as vLLM answers /detokenize.
[[nodiscard]] std::string detokenize_body(const Json& body, const Service& service);

struct ModelList {
  std::vector<std::string> names;
  int64_t created = 0;
  int64_t context_max = 0;
};
/// The list of models in a form that clients of both APIs read.
[[nodiscard]] std::string models_body(const ModelList& list);
[[nodiscard]] std::string model_body(std::string_view name, int64_t created, int64_t context_max);

}  // namespace tidepool
