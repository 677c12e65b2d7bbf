#pragma once

#include <string>
#include <string_view>

#include "apps/cli_app.h"
#include "text/chat_request.h"

namespace tidepool {

/// Options of a conversation's form.
struct ChatFlags {
  std::string system;
  std::string effort = "high";
  bool is_not_thinking = false;
};

void add_chat_flags(CLI::App& command, ChatFlags& flags);

/// "low", "high", "max" or an integer 1..100, as the number of the template. Throws Error(kInvalidArgument).
[[nodiscard]] int parse_effort(std::string_view text);

/// A request without messages but for the system message, if there is one.
[[nodiscard]] ChatRequest make_chat_request(const ChatFlags& flags);

/// A message of one text.
[[nodiscard]] ChatMessage make_message(ChatRole role, std::string text);

}  // namespace tidepool
