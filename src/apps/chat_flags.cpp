#include "apps/chat_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <optional>
#include <utility>

#include "base/error.h"

namespace tidepool {

void add_chat_flags(CLI::App& command, ChatFlags& flags) {
  command.add_option("--system", flags.system, "system message");
  command.add_option("--effort", flags.effort, "how thoroughly to think: low, high, max, or 1 to 100")
      ->capture_default_str();
  command.add_flag("--no-thinking", flags.is_not_thinking, "answer without thinking first");
}

int parse_effort(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc{} && end == text.data() + text.size();
  const std::optional<int> effort =
      try_effort(is_number ? Json::make_integer(number) : Json::make_string(std::string(text)));
  if (effort) return *effort;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("effort \"{}\" is not known; use low, high, max, or an integer from 1 to 100", text));
}

ChatRequest make_chat_request(const ChatFlags& flags) {
  ChatRequest request;
  request.is_thinking = !flags.is_not_thinking;
  request.effort = parse_effort(flags.effort);
  if (!flags.system.empty()) request.messages.push_back(make_message(ChatRole::kSystem, flags.system));
  return request;
}

ChatMessage make_message(ChatRole role, std::string text) {
  ChatMessage message;
  message.role = role;
  message.content.emplace_back();
  message.content.back().text = std::move(text);
  return message;
}

}  // namespace tidepool
