#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "session/conversation.h"
#include "text/json.h"

namespace tidepool {

/// How long the parts of a turn took.
struct TurnTimes {
  std::chrono::duration<double> load{0};
  std::chrono::duration<double> prompt{0};  ///< until the first token of the answer
  std::chrono::duration<double> answer{0};  ///< the rest
};

/// What `run --json` prints. (docs/commands.md)
[[nodiscard]] Json turn_json(const LoadedModel& model, const TurnRequest& request, const TurnResult& result,
                             const TurnTimes& times);

/// Tokens of the answer behind the first, per second; 0 when there is no time to divide by.
[[nodiscard]] double tokens_per_second(const TurnResult& result, const TurnTimes& times);

/// "12 tokens in, 40 out, 5.1 tokens/s" and, unless the model ended by itself, why the answer did.
[[nodiscard]] std::string turn_summary(const TurnResult& result, const TurnTimes& times);

}  // namespace tidepool
