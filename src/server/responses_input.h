#pragma once

#include <vector>

#include "server/json_fields.h"
#include "text/chat_request.h"

namespace tidepool::responses {

/// `instructions` and `input` as a conversation. Throws Error(kInvalidArgument), "input[3].call_id: what".
[[nodiscard]] std::vector<ChatMessage> read_input(const JsonFields& body);

}  // namespace tidepool::responses
