#include "apps/chat_transcript.h"

#include <string_view>
#include <utility>

namespace tidepool {
namespace {

std::string_view role_name(ChatRole role) {
  switch (role) {
    case ChatRole::kSystem: return "system";
    case ChatRole::kUser: return "user";
    case ChatRole::kAssistant: return "assistant";
    case ChatRole::kTool: return "tool";
    case ChatRole::kLatestReminder: return "latest_reminder";
  }
  return "";
}

Json message_json(const ChatMessage& message) {
  Json object = Json::make_object();
  object.set("role", Json::make_string(std::string(role_name(message.role))));
  std::string text;
  for (const ContentBlock& block : message.content)
    text += block.text;
  object.set("content", Json::make_string(std::move(text)));
  if (!message.reasoning.empty()) object.set("reasoning_content", Json::make_string(message.reasoning));
  return object;
}

}  // namespace

Json transcript_json(const ChatRequest& request) {
  Json::Array messages;
  for (const ChatMessage& message : request.messages)
    messages.push_back(message_json(message));
  Json thinking = Json::make_object();
  thinking.set("type", Json::make_string(request.is_thinking ? "enabled" : "disabled"));
  Json object = Json::make_object();
  object.set("messages", Json::make_array(std::move(messages)));
  object.set("thinking", std::move(thinking));
  if (request.is_thinking) object.set("reasoning_effort", Json::make_integer(request.effort));
  return object;
}

}  // namespace tidepool
