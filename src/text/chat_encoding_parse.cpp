#include "text/chat_encoding_parse.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace tidepool {

namespace {

/// What the reference prints for a null content of a tool message or a reminder.
constexpr std::string_view kNullText = "None";

ContentBlock text_block(std::string text) {
  ContentBlock block;
  block.text = std::move(text);
  return block;
}

ChatRole parse_role(const MessageReader& reader) {
  const std::string role = reader.string_field("role");
  if (role == "system") return ChatRole::kSystem;
  if (role == "user") return ChatRole::kUser;
  if (role == "assistant") return ChatRole::kAssistant;
  if (role == "tool") return ChatRole::kTool;
  if (role == "latest_reminder") return ChatRole::kLatestReminder;
  reader.fail("role", fmt::format("\"{}\" is none of system, user, assistant, tool, latest_reminder", role));
}

std::vector<ContentBlock> parse_content(const MessageReader& reader, const Json& message, ChatRole role) {
  const Json* content = message.find("content");
  const Json* blocks = reader.find("content_blocks");
  if (blocks == nullptr && content != nullptr && content->is_array()) blocks = content;
  const bool has_text = content != nullptr && content->is_string();
  const bool uses_blocks = blocks != nullptr && (role == ChatRole::kUser || !has_text);
  if (uses_blocks && (!blocks->is_array() || !blocks->as_array().empty())) {
    return reader.content("content_blocks", *blocks);
  }
  if (has_text) return {text_block(content->as_string())};
  if (content == nullptr || uses_blocks) return {text_block("")};
  if (!content->is_null()) return reader.content("content", *content);
  const bool prints_null = role == ChatRole::kTool || role == ChatRole::kLatestReminder;
  return {text_block(std::string(prints_null ? kNullText : ""))};
}

/// Values that the reference takes for "not given".
bool is_empty_value(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::kNull: return true;
    case Json::Kind::kBool: return !value.as_bool();
    case Json::Kind::kInteger:
    case Json::Kind::kReal: return value.as_double() == 0.0;
    case Json::Kind::kString: return value.as_string().empty();
    case Json::Kind::kArray: return value.as_array().empty();
    case Json::Kind::kObject: return value.as_object().empty();
  }
  return true;
}

ChatMessage parse_message(const Json& value, size_t index) {
  const MessageReader reader(value, index);
  ChatMessage message;
  message.role = parse_role(reader);
  message.content = parse_content(reader, value, message.role);
  message.task = reader.string_field("task");
  if (const Json* tools = reader.find("tools")) {
    if (!tools->is_array()) reader.fail("tools", "must be a list");
    message.tools = tools->as_array();
  }
  if (message.role == ChatRole::kAssistant) {
    message.reasoning = reader.string_field("reasoning_content");
    message.tool_calls = reader.tool_calls();
    message.is_open = reader.flag("wo_eos");
  } else if (message.role == ChatRole::kTool) {
    message.tool_call_id = reader.string_field("tool_call_id");
  } else if (message.role == ChatRole::kSystem) {
    const Json* format = reader.find("response_format");
    if (format != nullptr && !is_empty_value(*format)) message.response_format = *format;
  }
  return message;
}

ThinkingMode parse_thinking_mode(const Json& options) {
  const Json* mode = options.find("thinking_mode");
  if (mode != nullptr && mode->is_string()) {
    if (mode->as_string() == "chat") return ThinkingMode::kChat;
    if (mode->as_string() == "thinking") return ThinkingMode::kThinking;
  }
  throw Error(ErrorCode::kInvalidArgument, "options.thinking_mode: must be \"chat\" or \"thinking\"");
}

bool parse_option_flag(const Json& options, std::string_view key, bool fallback) {
  const Json* value = options.find(key);
  if (value == nullptr || value->is_null()) return fallback;
  if (!value->is_bool()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("options.{}: must be a boolean", key));
  }
  return value->as_bool();
}

}  // namespace

MessageReader::MessageReader(const Json& message, size_t index) : message_(message), index_(index) {
  if (!message.is_object()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("messages[{}]: must be an object, not {}", index, message.kind_name()));
  }
}

void MessageReader::fail(std::string_view field, std::string_view what) const {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("messages[{}].{}: {}", index_, field, what));
}

const Json* MessageReader::find(std::string_view field) const {
  const Json* value = message_.find(field);
  return value != nullptr && value->is_null() ? nullptr : value;
}

std::string MessageReader::string_field(std::string_view field) const {
  const Json* value = find(field);
  if (value == nullptr) return "";
  if (!value->is_string()) fail(field, fmt::format("must be a string, not {}", value->kind_name()));
  return value->as_string();
}

bool MessageReader::flag(std::string_view field) const {
  const Json* value = find(field);
  if (value == nullptr) return false;
  if (!value->is_bool()) fail(field, fmt::format("must be a boolean, not {}", value->kind_name()));
  return value->as_bool();
}

std::string MessageReader::string_in(const std::string& field, const Json& object, std::string_view key) const {
  const Json* value = object.find(key);
  if (value == nullptr || value->is_null()) return "";
  if (!value->is_string()) {
    fail(fmt::format("{}.{}", field, key), fmt::format("must be a string, not {}", value->kind_name()));
  }
  return value->as_string();
}

std::vector<ToolCall> MessageReader::tool_calls() const {
  std::vector<ToolCall> calls;
  const Json* list = find("tool_calls");
  if (list == nullptr) return calls;
  if (!list->is_array()) fail("tool_calls", fmt::format("must be a list, not {}", list->kind_name()));
  for (const Json& call : list->as_array())
    calls.push_back(tool_call(fmt::format("tool_calls[{}]", calls.size()), call));
  return calls;
}

ToolCall MessageReader::tool_call(const std::string& field, const Json& value) const {
  const Json* function = value.find("function");
  if (function == nullptr || !function->is_object()) fail(field + ".function", "must be an object");
  ToolCall call;
  call.id = string_in(field, value, "id");
  if (call.id.empty()) call.id = string_in(field + ".function", *function, "id");
  const Json* name = function->find("name");
  if (name == nullptr || !name->is_string()) fail(field + ".function.name", "must be a string");
  call.name = name->as_string();
  const Json* space = value.find("namespace");
  if (space == nullptr || space->is_null()) space = function->find("namespace");
  if (space != nullptr && space->is_object()) {
    call.space = string_in(field + ".namespace", *space, "name");
  } else if (space != nullptr && space->is_string()) {
    call.space = space->as_string();
  } else if (space != nullptr && !space->is_null()) {
    fail(field + ".namespace", "must be a string or an object with a name");
  }
  const Json* arguments = function->find("arguments");
  call.arguments = arguments == nullptr ? Json::make_object() : *arguments;
  return call;
}

std::vector<ContentBlock> MessageReader::content(std::string_view field, const Json& value) const {
  std::vector<ContentBlock> blocks;
  if (value.is_string()) return {text_block(value.as_string())};
  if (!value.is_array()) {
    fail(field, fmt::format("must be a string or a list of blocks, not {}", value.kind_name()));
  }
  for (const Json& element : value.as_array())
    blocks.push_back(block(fmt::format("{}[{}]", field, blocks.size()), element));
  return blocks;
}

ContentBlock MessageReader::block(const std::string& field, const Json& value) const {
  if (!value.is_object()) fail(field, fmt::format("must be an object, not {}", value.kind_name()));
  const std::string type = string_in(field, value, "type");
  ContentBlock block;
  if (type == "text") {
    block.text = string_in(field, value, "text");
  } else if (type == "image_url" || type == "image") {
    block.kind = ContentBlock::Kind::kImage;
    block.image = image_record(field, value);
  } else if (type == "tool_result") {
    block.kind = ContentBlock::Kind::kToolResult;
    block.tool_use_id = string_in(field, value, "tool_use_id");
    const Json* answer = value.find("content");
    if (answer == nullptr) {
      block.content = {text_block("")};
    } else if (answer->is_null()) {
      block.content = {text_block(std::string(kNullText))};
    } else {
      block.content = content(field + ".content", *answer);
    }
  } else {
    block.kind = ContentBlock::Kind::kOther;
    block.text = type;
  }
  return block;
}

Json MessageReader::image_record(const std::string& field, const Json& block) const {
  Json record = Json::make_object();
  record.set("type", Json::make_string("image"));
  if (const Json* link = block.find("image_url")) {
    std::string url = link->is_string() ? link->as_string() : string_in(field + ".image_url", *link, "url");
    if (!url.empty()) record.set("url", Json::make_string(std::move(url)));
  } else {
    for (const std::string_view key : {"source", "url", "data"}) {
      const Json* value = block.find(key);
      if (value != nullptr && !is_empty_value(*value)) record.set(key, *value);
    }
  }
  if (record.as_object().size() < 2) fail(field, "an image block needs a source, a url or data");
  return record;
}

std::vector<ChatMessage> parse_chat_messages(const Json& messages) {
  if (!messages.is_array()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("messages: must be a list, not {}", messages.kind_name()));
  }
  std::vector<ChatMessage> result;
  for (const Json& message : messages.as_array())
    result.push_back(parse_message(message, result.size()));
  return result;
}

ChatEncodingOptions parse_chat_encoding_options(const Json& options) {
  ChatEncodingOptions result;
  result.mode = parse_thinking_mode(options);
  const Json* effort = options.find("reasoning_effort");
  if (effort != nullptr && !effort->is_null()) {
    const std::optional<int> number = try_effort(*effort);
    if (!number) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("options.reasoning_effort: {} is none of \"low\", \"high\", \"max\", 1..100",
                              write_json(*effort)));
    }
    result.effort = *number;
  }
  result.drops_reasoning = parse_option_flag(options, "drop_thinking", true);
  result.adds_begin_of_sentence = parse_option_flag(options, "add_default_bos_token", true);
  return result;
}

std::optional<int> try_effort(const Json& value) {
  if (value.is_string()) {
    if (value.as_string() == "low") return 50;
    if (value.as_string() == "high") return 75;
    if (value.as_string() == "max") return 100;
    return std::nullopt;
  }
  const std::optional<int64_t> number = value.try_int64();
  if (!number || *number < 1 || *number > 100) return std::nullopt;
  return static_cast<int>(*number);
}

}  // namespace tidepool
