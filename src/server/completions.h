#pragma once

#include "server/request_fields.h"

/// OpenAI text completions, with fill in the middle. (docs/api.md)
namespace tidepool::completions {

/// Prompts of one request.
inline constexpr size_t kPromptsMax = 128;

/// Reads a body. Throws Error(kInvalidArgument), "field: what".
[[nodiscard]] ApiCall read_call(const Json& body, const ApiContext& context);

}  // namespace tidepool::completions
