#pragma once

#include "server/request_fields.h"

/// Anthropic messages. (docs/api.md)
namespace tidepool::messages {

/// Reads a body. Throws Error(kInvalidArgument), "field: what".
[[nodiscard]] ApiCall read_call(const Json& body, const ApiContext& context);
/// Reads a body of count_tokens: the prompt only.
[[nodiscard]] ServiceRequest read_count_request(const Json& body);

}  // namespace tidepool::messages
