#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "text/chat_encoding_parse.h"
#include "text/chat_request.h"

namespace tidepool {

namespace {

/// A member of the wanted kind; null pointer when missing or null.
const Json* typed_member(const Json& object, std::string_view key, Json::Kind kind, std::string_view path,
                         std::string_view wanted) {
  const Json* value = object.find(key);
  if (value == nullptr || value->is_null()) return nullptr;
  if (value->kind() != kind) refuse_argument(path, fmt::format("must be {}, not {}", wanted, value->kind_name()));
  return value;
}

const Json* object_member(const Json& object, std::string_view key, std::string_view path) {
  return typed_member(object, key, Json::Kind::kObject, path, "an object");
}

const Json* list_member(const Json& object, std::string_view key, std::string_view path) {
  return typed_member(object, key, Json::Kind::kArray, path, "a list");
}

std::string string_member(const Json& object, std::string_view key, std::string_view path) {
  const Json* value = typed_member(object, key, Json::Kind::kString, path, "a string");
  return value == nullptr ? "" : value->as_string();
}

std::optional<bool> flag_member(const Json& object, std::string_view key, std::string_view path) {
  const Json* value = typed_member(object, key, Json::Kind::kBool, path, "a boolean");
  return value == nullptr ? std::nullopt : std::optional<bool>(value->as_bool());
}

// --- messages -------------------------------------------------------------------------------------------------------

/// The developer role is not the model's: at the front it is the system, elsewhere a user.
ChatRole parse_role(const MessageReader& reader, size_t index) {
  const std::string role = reader.string_field("role");
  if (role == "system") return ChatRole::kSystem;
  if (role == "developer") return index == 0 ? ChatRole::kSystem : ChatRole::kUser;
  if (role == "user") return ChatRole::kUser;
  if (role == "assistant") return ChatRole::kAssistant;
  if (role == "tool") return ChatRole::kTool;
  if (role == "latest_reminder") return ChatRole::kLatestReminder;
  reader.fail("role", fmt::format("\"{}\" is none of system, developer, user, assistant, tool, latest_reminder", role));
}

std::vector<ContentBlock> parse_content(const MessageReader& reader) {
  const Json* content = reader.find("content");
  if (content == nullptr) return {};
  std::vector<ContentBlock> blocks = reader.content("content", *content);
  for (const ContentBlock& block : blocks) {
    if (block.kind == ContentBlock::Kind::kText || block.kind == ContentBlock::Kind::kImage) continue;
    const std::string type = block.kind == ContentBlock::Kind::kOther ? block.text : "tool_result";
    reader.fail("content", fmt::format("a part of type \"{}\" is not supported; send text or image_url parts", type));
  }
  return blocks;
}

ChatMessage parse_message(const Json& value, size_t index, bool is_last, ChatRequest& request) {
  const MessageReader reader(value, index);
  ChatMessage message;
  message.role = parse_role(reader, index);
  message.content = parse_content(reader);
  if (message.role == ChatRole::kTool) {
    message.tool_call_id = reader.string_field("tool_call_id");
    if (message.tool_call_id.empty()) reader.fail("tool_call_id", "is missing");
  }
  if (message.role != ChatRole::kAssistant) return message;
  message.reasoning = reader.string_field("reasoning_content");
  if (message.reasoning.empty()) message.reasoning = reader.string_field("reasoning");
  message.tool_calls = reader.tool_calls();
  for (ToolCall& call : message.tool_calls) {
    if (call.arguments.is_null()) call.arguments = Json::make_object();
  }
  if (message.content.empty() && message.tool_calls.empty() && message.reasoning.empty()) {
    reader.fail("content", "an assistant message needs content or tool_calls");
  }
  if (reader.flag("prefix")) {
    if (!is_last) reader.fail("prefix", "is possible in the last message only");
    request.continues_last_message = true;
  }
  return message;
}

void parse_messages(const Json& body, ChatRequest& request) {
  const Json* list = list_member(body, "messages", "messages");
  if (list == nullptr) refuse_argument("messages", "is missing");
  const size_t count = list->as_array().size();
  for (size_t i = 0; i < count; ++i) {
    request.messages.push_back(parse_message(list->as_array()[i], i, i + 1 == count, request));
  }
  if (flag_member(body, "continue_final_message", "continue_final_message").value_or(false)) {
    request.continues_last_message = true;
  }
  const bool opens_turn = flag_member(body, "add_generation_prompt", "add_generation_prompt").value_or(true);
  if (!opens_turn && !request.continues_last_message) {
    refuse_argument("add_generation_prompt", "can be false only together with continue_final_message");
  }
}

// --- tools and answer format ----------------------------------------------------------------------------------------

void parse_namespace(const Json& holder, const std::string& path, ToolDefinition& tool) {
  const Json* space = holder.find("namespace");
  if (space == nullptr || space->is_null() || !tool.space.empty()) return;
  if (space->is_object()) {
    tool.space = string_member(*space, "name", path + ".namespace.name");
    tool.space_description = string_member(*space, "description", path + ".namespace.description");
  } else {
    tool.space = string_member(holder, "namespace", path + ".namespace");
  }
}

ToolDefinition parse_tool(const Json& value, const std::string& path) {
  if (!value.is_object()) refuse_argument(path, fmt::format("must be an object, not {}", value.kind_name()));
  const std::string type = string_member(value, "type", path + ".type");
  if (!type.empty() && type != "function") {
    refuse_argument(path + ".type", fmt::format("\"{}\" is not supported; only \"function\" is", type));
  }
  const Json* function = object_member(value, "function", path + ".function");
  if (function == nullptr) refuse_argument(path + ".function", "is missing");
  ToolDefinition tool;
  const std::string inner = path + ".function";
  tool.name = string_member(*function, "name", inner + ".name");
  tool.description = string_member(*function, "description", inner + ".description");
  if (const Json* parameters = object_member(*function, "parameters", inner + ".parameters")) {
    tool.parameters = *parameters;
  }
  tool.is_strict = flag_member(*function, "strict", inner + ".strict").value_or(false);
  parse_namespace(value, path, tool);
  parse_namespace(*function, inner, tool);
  return tool;
}

void parse_tool_choice(const Json& body, ChatRequest& request) {
  const Json* choice = body.find("tool_choice");
  if (choice == nullptr || choice->is_null()) return;
  if (choice->is_string()) {
    const std::string& name = choice->as_string();
    if (name == "auto") return;
    if (name == "none") {
      request.tool_choice = ToolChoice::kNone;
      return;
    }
    if (name == "required") {
      request.tool_choice = ToolChoice::kRequired;
      return;
    }
  } else if (const Json* function = choice->find("function")) {
    request.tool_choice = ToolChoice::kNamed;
    request.tool_choice_name = string_member(*function, "name", "tool_choice.function.name");
    return;
  }
  refuse_argument("tool_choice",
                  R"(must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}})");
}

void parse_response_format(const Json& body, ChatRequest& request) {
  const Json* format = object_member(body, "response_format", "response_format");
  if (format == nullptr) return;
  const std::string type = string_member(*format, "type", "response_format.type");
  if (type == "text") return;
  if (type == "json_schema") {
    if (object_member(*format, "json_schema", "response_format.json_schema") == nullptr) {
      refuse_argument("response_format.json_schema", "is missing");
    }
  } else if (type != "json_object") {
    refuse_argument("response_format.type", fmt::format("\"{}\" is none of text, json_object, json_schema", type));
  }
  request.response_format = *format;
}

// --- thinking -------------------------------------------------------------------------------------------------------

std::optional<bool> explicit_thinking(const Json& body, const Json& extras) {
  if (const Json* thinking = object_member(body, "thinking", "thinking")) {
    const std::string type = string_member(*thinking, "type", "thinking.type");
    if (type == "enabled" || type == "adaptive") return true;
    if (type == "disabled") return false;
    refuse_argument("thinking.type", fmt::format("\"{}\" is none of enabled, adaptive, disabled", type));
  }
  std::optional<bool> flag = flag_member(extras, "thinking", "chat_template_kwargs.thinking");
  if (!flag) flag = flag_member(extras, "enable_thinking", "chat_template_kwargs.enable_thinking");
  return flag;
}

void parse_thinking(const Json& body, ChatRequest& request) {
  const Json none = Json::make_object();
  const Json* given = object_member(body, "chat_template_kwargs", "chat_template_kwargs");
  const Json& extras = given == nullptr ? none : *given;
  const Json* effort = body.find("reasoning_effort");
  if (effort == nullptr || effort->is_null()) effort = extras.find("reasoning_effort");
  const bool has_effort = effort != nullptr && !effort->is_null();
  const bool is_off = has_effort && effort->is_string() && effort->as_string() == "none";
  request.is_thinking = explicit_thinking(body, extras).value_or(!is_off);
  if (has_effort && (!is_off || request.is_thinking)) {
    const std::optional<int> number = try_request_effort(*effort);
    if (!number) {
      refuse_argument("reasoning_effort",
                      fmt::format("{} is none of \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\", "
                                  "\"max\", \"ultra\", 1..100 (\"none\" only without thinking)",
                                  write_json(*effort)));
    }
    request.effort = *number;
  }
  std::optional<bool> drops = flag_member(body, "drop_thinking", "drop_thinking");
  if (!drops) drops = flag_member(extras, "drop_thinking", "chat_template_kwargs.drop_thinking");
  request.drops_reasoning = drops.value_or(true);
}

}  // namespace

std::optional<int> try_request_effort(const Json& effort) {
  if (!effort.is_string()) return try_effort(effort);
  const std::string& name = effort.as_string();
  if (name == "minimal" || name == "low") return 50;
  if (name == "medium" || name == "high" || name == "xhigh") return 75;
  if (name == "max" || name == "ultra") return 100;
  return std::nullopt;
}

ChatRequest parse_chat_request(const Json& body) {
  if (!body.is_object()) refuse_argument("request", fmt::format("must be a JSON object, not {}", body.kind_name()));
  ChatRequest request;
  parse_messages(body, request);
  if (const Json* tools = list_member(body, "tools", "tools")) {
    for (const Json& tool : tools->as_array()) {
      request.tools.push_back(parse_tool(tool, fmt::format("tools[{}]", request.tools.size())));
    }
  }
  parse_tool_choice(body, request);
  parse_response_format(body, request);
  parse_thinking(body, request);
  return request;
}

}  // namespace tidepool
