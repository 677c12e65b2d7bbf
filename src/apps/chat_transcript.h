#pragma once

#include <string>

#include "text/chat_request.h"
#include "text/json.h"

namespace tidepool {

/// A conversation as a chat completions body: `messages`, `thinking` and `reasoning_effort`. What `/save` writes and
/// `run --request` reads.
[[nodiscard]] Json transcript_json(const ChatRequest& request);

}  // namespace tidepool
