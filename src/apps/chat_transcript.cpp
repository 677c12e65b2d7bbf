#include "apps/chat_transcript.h"

#include <string_view>
#include <utility>
#include <vector>

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

Json content_part(std::string_view type, std::string_view key, Json value) {
  Json part = Json::make_object();
  part.set("type", Json::make_string(std::string(type)));
  part.set(key, std::move(value));
  return part;
}

/// One text, or a list of parts where there are pictures.
Json content_json(const std::vector<ContentBlock>& content) {
  std::string text;
  Json::Array parts;
  for (const ContentBlock& block : content) {
    if (block.kind == ContentBlock::Kind::kImage) {
      Json link = Json::make_object();
      if (const Json* url = block.image.find("url")) link.set("url", *url);
      parts.push_back(content_part("image_url", "image_url", std::move(link)));
    } else {
      text += block.text;
    }
  }
  if (parts.empty()) return Json::make_string(std::move(text));
  parts.push_back(content_part("text", "text", Json::make_string(std::move(text))));
  return Json::make_array(std::move(parts));
}

Json message_json(const ChatMessage& message) {
  Json object = Json::make_object();
  object.set("role", Json::make_string(std::string(role_name(message.role))));
  object.set("content", content_json(message.content));
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
