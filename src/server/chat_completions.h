#pragma once

#include "server/request_fields.h"

/// OpenAI chat completions, as the hosted DeepSeek service and vLLM extend them. (docs/api.md)
namespace tidepool::chat {

/// Reads a body. Throws Error(kInvalidArgument), "field: what".
[[nodiscard]] ApiCall read_call(const Json& body, const ApiContext& context);

}  // namespace tidepool::chat
