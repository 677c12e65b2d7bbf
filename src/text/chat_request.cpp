#include "text/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "text/dsml.h"

namespace tidepool {

namespace {

constexpr size_t kToolNameBytesMax = 128;

void check_images(const std::vector<ChatMessage>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == ChatRole::kUser || messages[i].role == ChatRole::kTool) continue;
    for (const ContentBlock& block : messages[i].content) {
      if (block.kind == ContentBlock::Kind::kImage) {
        refuse_argument(fmt::format("messages[{}].content", i), "images are possible in user and tool messages only");
      }
    }
  }
}

/// The ids of one message's calls.
std::set<std::string> check_call_ids(const ChatMessage& message, size_t index) {
  std::set<std::string> ids;
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const std::string& id = message.tool_calls[i].id;
    const std::string path = fmt::format("messages[{}].tool_calls[{}].id", index, i);
    if (id.empty()) refuse_argument(path, "is missing; the result is matched to the call by it");
    if (!ids.insert(id).second)
      refuse_argument(path, fmt::format("\"{}\" is used by another call of this message", id));
  }
  return ids;
}

/// Every call is answered once by the tool messages right behind it, and nothing else is answered.
void check_calls_answered(const std::vector<ChatMessage>& messages) {
  std::set<std::string> open;
  size_t caller = 0;
  const auto require_all_answered = [&open, &caller] {
    if (open.empty()) return;
    refuse_argument(fmt::format("messages[{}].tool_calls", caller),
                    fmt::format("call \"{}\" is not answered by a tool message right behind it", *open.begin()));
  };
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == ChatRole::kTool) {
      if (open.erase(messages[i].tool_call_id) == 0) {
        refuse_argument(
            fmt::format("messages[{}].tool_call_id", i),
            fmt::format("\"{}\" is no unanswered call of the assistant message before", messages[i].tool_call_id));
      }
      continue;
    }
    require_all_answered();
    open = check_call_ids(messages[i], i);
    caller = i;
  }
  require_all_answered();
}

bool is_tool_name(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == ':' || c == '-';
  };
  return !name.empty() && name.size() <= kToolNameBytesMax && std::all_of(name.begin(), name.end(), is_allowed);
}

/// The names as the model will see them.
std::set<std::string> check_tool_names(const std::vector<ToolDefinition>& tools) {
  std::set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = fmt::format("tools[{}].function.name", i);
    std::string name;
    try {
      name = qualify_tool_name(tools[i].name, tools[i].space);
    } catch (const Error& error) {
      refuse_argument(path, error.what());
    }
    if (!is_tool_name(name) || tools[i].name.empty()) {
      refuse_argument(
          path, fmt::format("\"{}\" is not 1 to {} of the characters A-Z a-z 0-9 _ . : -", name, kToolNameBytesMax));
    }
    if (!names.insert(name).second) refuse_argument(path, fmt::format("\"{}\" is defined twice", name));
  }
  return names;
}

void check_tool_choice(const ChatRequest& request, const std::set<std::string>& names) {
  const bool is_forced = request.tool_choice == ToolChoice::kRequired || request.tool_choice == ToolChoice::kNamed;
  if (!is_forced) return;
  if (names.empty()) refuse_argument("tool_choice", "asks for a call, but there are no tools");
  if (request.tool_choice == ToolChoice::kNamed && !names.contains(request.tool_choice_name)) {
    refuse_argument("tool_choice", fmt::format("there is no tool \"{}\"", request.tool_choice_name));
  }
  if (request.is_thinking) refuse_argument("tool_choice", "a forced call needs thinking to be disabled");
}

/// The tools the model is shown, reduced to name, description and parameters.
std::vector<Json> shown_tools(const ChatRequest& request) {
  std::vector<Json> shown;
  if (request.tool_choice == ToolChoice::kNone) return shown;
  for (const ToolDefinition& tool : request.tools) {
    std::string name = qualify_tool_name(tool.name, tool.space);
    if (request.tool_choice == ToolChoice::kNamed && name != request.tool_choice_name) continue;
    Json function = Json::make_object();
    function.set("name", Json::make_string(std::move(name)));
    std::string description = tool.description;
    if (!tool.space_description.empty()) description = tool.space_description + "\n" + description;
    function.set("description", Json::make_string(std::move(description)));
    function.set("parameters", tool.parameters);
    Json definition = Json::make_object();
    definition.set("function", std::move(function));
    shown.push_back(std::move(definition));
  }
  return shown;
}

/// The messages with tools and answer format where the encoder wants them: in a system message at the front.
std::vector<ChatMessage> placed_messages(const ChatRequest& request, std::vector<Json> tools) {
  std::vector<ChatMessage> messages = request.messages;
  for (ChatMessage& message : messages) {
    message.tools.clear();
    message.response_format.reset();
  }
  if (tools.empty() && !request.response_format) return messages;
  if (messages.front().role != ChatRole::kSystem) {
    messages.insert(messages.begin(), ChatMessage());
    messages.front().role = ChatRole::kSystem;
  }
  messages.front().tools = std::move(tools);
  messages.front().response_format = request.response_format;
  return messages;
}

/// Whether the encoder ends these messages without an assistant turn to be filled.
bool ends_without_turn(const std::vector<ChatMessage>& messages) {
  switch (messages.back().role) {
    case ChatRole::kAssistant:
    case ChatRole::kLatestReminder: return true;
    case ChatRole::kSystem: return messages.size() == 1;
    case ChatRole::kUser:
    case ChatRole::kTool: return false;
  }
  return false;
}

}  // namespace

void check_chat_request(const ChatRequest& request) {
  const std::vector<ChatMessage>& messages = request.messages;
  if (messages.empty()) refuse_argument("messages", "must not be empty");
  check_chat_messages(messages);
  check_images(messages);
  check_calls_answered(messages);
  check_tool_choice(request, check_tool_names(request.tools));
  const bool can_continue = messages.back().role == ChatRole::kAssistant;
  if (request.continues_last_message && !can_continue) {
    refuse_argument(fmt::format("messages[{}]", messages.size() - 1), "only an assistant message can be continued");
  }
}

PreparedChat encode_chat_request(const ChatRequest& request) {
  check_chat_request(request);
  PreparedChat prepared;
  std::vector<Json> tools = shown_tools(request);
  prepared.has_tools = !tools.empty();
  std::vector<ChatMessage> messages = placed_messages(request, std::move(tools));
  if (request.continues_last_message) messages.back().is_open = true;

  ChatEncodingOptions options;
  options.mode = request.is_thinking ? ThinkingMode::kThinking : ThinkingMode::kChat;
  options.effort = request.effort;
  options.drops_reasoning = request.drops_reasoning;
  prepared.prompt = encode_chat(messages, options);
  prepared.output_starts_in = request.is_thinking ? OutputStart::kReasoning : OutputStart::kContent;
  if (request.continues_last_message) {
    prepared.output_starts_in = OutputStart::kContinuation;
  } else if (ends_without_turn(messages)) {
    append_template(prepared.prompt, dsml::kAssistant);
    append_template(prepared.prompt, request.is_thinking ? dsml::kThinkBegin : dsml::kThinkEnd);
  }
  if (request.tool_choice == ToolChoice::kRequired || request.tool_choice == ToolChoice::kNamed) {
    append_template(prepared.prompt, dsml::kCallsOpening);
    prepared.output_starts_in = OutputStart::kCalls;
  }
  return prepared;
}

}  // namespace tidepool
