#pragma once

#include "server/request_fields.h"

/// OpenAI responses, without a store: every request brings its whole conversation. (docs/api.md)
namespace tidepool::responses {

/// Reads a body. Throws Error(kInvalidArgument), "field: what".
[[nodiscard]] ApiCall read_call(const Json& body, const ApiContext& context);

}  // namespace tidepool::responses
