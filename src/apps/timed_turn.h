#pragma once

#include "apps/turn_json.h"
#include "session/conversation.h"

namespace tidepool {

/// Runs a turn with a progress bar over its prompt, and notes how long the parts took.
[[nodiscard]] TurnResult run_timed(Conversation& conversation, const TurnRequest& request,
                                   const std::function<void(const CompletionEvent&)>& on_event,
                                   const std::stop_token& stop, TurnTimes& times);

/// Says on standard error which control tokens a tokenizer lacks, if any.
void note_missing_control_tokens(const std::vector<std::string>& missing);

}  // namespace tidepool
