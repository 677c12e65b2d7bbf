#include "server/anthropic_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "server/anthropic_writers.h"

namespace tidepool::messages {
namespace {

/// Claude Code puts it in front with a hash that can change with every request: nothing behind it would ever be found
/// in the cache.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

ContentBlock text_block(std::string text) {
  ContentBlock block;
  block.text = std::move(text);
  return block;
}

/// `text` without lines that begin as the billing header does.
std::string without_billing(const std::string& text) {
  if (text.find(kBillingHeader) == std::string::npos) return text;
  std::string kept;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (!line.starts_with(kBillingHeader)) kept += line;
    begin = end;
  }
  return kept;
}

[[noreturn]] void refuse_block(const std::string& path, std::string_view type) {
  refuse_field(path, fmt::format("a block of type \"{}\" is not supported here", printable(type, 40)));
}

ContentBlock read_image(const JsonFields& block) {
  const std::optional<JsonFields> source = block.object("source");
  if (!source) block.fail("source", "is missing");
  const std::string& type = source->required_string("type");
  std::string url;
  if (type == "base64") {
    url = fmt::format("data:{};base64,{}", source->required_string("media_type"), source->required_string("data"));
  } else if (type == "url") {
    url = source->required_string("url");
  } else {
    source->fail("type", fmt::format("\"{}\" is none of base64, url", printable(type, 40)));
  }
  ContentBlock image;
  image.kind = ContentBlock::Kind::kImage;
  image.image = Json::make_object();
  image.image.set("type", Json::make_string("image"));
  image.image.set("url", Json::make_string(std::move(url)));
  return image;
}

/// Texts and images: what users and tools may say.
std::vector<ContentBlock> read_plain_blocks(const Json& content, const std::string& path, bool allows_images) {
  if (content.is_string()) return {text_block(content.as_string())};
  if (!content.is_array()) refuse_field(path, "must be a string or a list of blocks");
  std::vector<ContentBlock> blocks;
  for (size_t i = 0; i < content.as_array().size(); ++i) {
    const JsonFields block(content.as_array()[i], element_path(path, i));
    const std::string& type = block.required_string("type");
    if (type == "text") {
      blocks.push_back(text_block(block.required_string("text")));
    } else if (type == "image" && allows_images) {
      blocks.push_back(read_image(block));
    } else {
      refuse_block(block.own_path(), type);
    }
  }
  return blocks;
}

/// Texts of a system prompt, joined; without billing lines.
std::string read_system_text(const Json& content, const std::string& path) {
  std::string text;
  for (const ContentBlock& block : read_plain_blocks(content, path, false)) {
    const std::string kept = without_billing(block.text);
    if (kept.empty()) continue;
    if (!text.empty()) text += "\n\n";
    text += kept;
  }
  return text;
}

ChatMessage text_message(ChatRole role, std::string text) {
  ChatMessage message;
  message.role = role;
  if (!text.empty()) message.content.push_back(text_block(std::move(text)));
  return message;
}

// --- messages -------------------------------------------------------------------------------------------------------

ChatMessage read_tool_result(const JsonFields& block) {
  ChatMessage result;
  result.role = ChatRole::kTool;
  result.tool_call_id = block.required_string("tool_use_id");
  (void)block.flag("is_error");
  const Json* content = block.find("content");
  if (content != nullptr) result.content = read_plain_blocks(*content, block.path("content"), true);
  return result;
}

/// Sees to it that every call has its result in the next message, and says where not.
class CallCheck {
 public:
  void begin_message(const JsonFields& message, std::string_view role) {
    if (open_.empty() || role == "user") return;
    message.fail("content", fmt::format("the calls before it have no results: \"{}\"", printable(*open_.begin(), 80)));
  }
  void add_call(const JsonFields& block, const std::string& id) {
    if (!open_.insert(id).second) block.fail("id", "is used by another call of this message");
  }
  void add_result(const JsonFields& block, const std::string& id) {
    if (open_.erase(id) == 0) block.fail("tool_use_id", "names no call of the assistant's message before");
  }
  void end_user_message(const JsonFields& message) const { require_results(message.path("content")); }
  void require_results(const std::string& path) const {
    if (open_.empty()) return;
    refuse_field(path, fmt::format("there is no tool_result for the call \"{}\"", printable(*open_.begin(), 80)));
  }

 private:
  std::set<std::string> open_;  ///< ids of calls without their results yet
};

/// A user's turn: results of calls become messages of their own, in front of what else it says.
void read_user(const JsonFields& message, CallCheck& calls, std::vector<ChatMessage>& messages) {
  const Json* content = message.find("content");
  if (content == nullptr) message.fail("content", "is missing");
  ChatMessage rest;
  rest.role = ChatRole::kUser;
  const std::string path = message.path("content");
  if (!content->is_array()) {
    rest.content = read_plain_blocks(*content, path, true);
    messages.push_back(std::move(rest));
    return;
  }
  bool has_results = false;
  for (size_t i = 0; i < content->as_array().size(); ++i) {
    const JsonFields block(content->as_array()[i], element_path(path, i));
    const std::string& type = block.required_string("type");
    if (type == "tool_result") {
      messages.push_back(read_tool_result(block));
      calls.add_result(block, messages.back().tool_call_id);
      has_results = true;
    } else if (type == "text") {
      rest.content.push_back(text_block(block.required_string("text")));
    } else if (type == "image") {
      rest.content.push_back(read_image(block));
    } else {
      refuse_block(block.own_path(), type);
    }
  }
  if (!rest.content.empty() || !has_results) messages.push_back(std::move(rest));
}

ToolCall read_tool_use(const JsonFields& block) {
  ToolCall call;
  call.id = block.required_string("id");
  call.name = block.required_string("name");
  const std::optional<JsonFields> input = block.object("input");
  call.arguments = input ? input->json() : Json::make_object();
  return call;
}

void append_joined(std::string& text, const std::string& more, std::string_view separator) {
  if (!text.empty() && !more.empty()) text += separator;
  text += more;
}

void read_assistant(const JsonFields& message, CallCheck& calls, std::vector<ChatMessage>& messages) {
  const Json* content = message.find("content");
  if (content == nullptr) message.fail("content", "is missing");
  if (content->is_string()) {
    messages.push_back(text_message(ChatRole::kAssistant, content->as_string()));
    return;
  }
  if (!content->is_array()) message.fail("content", "must be a string or a list of blocks");
  std::string text;
  ChatMessage turn;
  turn.role = ChatRole::kAssistant;
  for (size_t i = 0; i < content->as_array().size(); ++i) {
    const JsonFields block(content->as_array()[i], element_path(message.path("content"), i));
    const std::string& type = block.required_string("type");
    if (type == "text") {
      append_joined(text, block.required_string("text"), "\n\n");
    } else if (type == "thinking") {
      append_joined(turn.reasoning, block.required_string("thinking"), "\n");
      (void)block.string("signature");
    } else if (type == "tool_use") {
      turn.tool_calls.push_back(read_tool_use(block));
      calls.add_call(block, turn.tool_calls.back().id);
    } else if (type != "redacted_thinking") {
      refuse_block(block.own_path(), type);
    }
  }
  if (!text.empty()) turn.content.push_back(text_block(std::move(text)));
  messages.push_back(std::move(turn));
}

void read_messages(const JsonFields& body, ChatRequest& chat) {
  if (const Json* system = body.find("system")) {
    const std::string text = read_system_text(*system, "system");
    if (!text.empty()) chat.messages.push_back(text_message(ChatRole::kSystem, text));
  }
  const Json::Array* list = body.list("messages");
  if (list == nullptr) body.fail("messages", "is missing");
  if (list->empty()) body.fail("messages", "must not be empty");
  CallCheck calls;
  for (size_t i = 0; i < list->size(); ++i) {
    const JsonFields message((*list)[i], element_path("messages", i));
    const std::string& role = message.required_string("role");
    calls.begin_message(message, role);
    if (role == "user") {
      read_user(message, calls, chat.messages);
      calls.end_user_message(message);
    } else if (role == "assistant") {
      read_assistant(message, calls, chat.messages);
    } else if (role == "system") {
      const Json* content = message.find("content");
      if (content == nullptr) message.fail("content", "is missing");
      chat.messages.push_back(text_message(ChatRole::kSystem, read_system_text(*content, message.path("content"))));
    } else {
      message.fail("role", fmt::format("\"{}\" is none of user, assistant, system", printable(role, 40)));
    }
  }
  calls.require_results("messages");
  // As in Anthropic's API, a last turn of the assistant's is to be gone on with.
  const ChatMessage& last = chat.messages.back();
  chat.continues_last_message = last.role == ChatRole::kAssistant && last.tool_calls.empty();
}

// --- tools and thinking ---------------------------------------------------------------------------------------------

void read_tools(const JsonFields& body, ChatRequest& chat) {
  const Json::Array* list = body.list("tools");
  if (list == nullptr) return;
  for (size_t i = 0; i < list->size(); ++i) {
    const JsonFields fields((*list)[i], element_path("tools", i));
    const std::string type = fields.string_or("type", "custom");
    if (type != "custom") {
      log_warning("a tool of type {} is left out: this server runs none of its own", printable(type, 40));
      continue;
    }
    ToolDefinition tool;
    tool.name = fields.required_string("name");
    tool.description = fields.string_or("description", "");
    if (const std::optional<JsonFields> schema = fields.object("input_schema")) tool.parameters = schema->json();
    tool.is_strict = fields.flag("strict").value_or(false);
    chat.tools.push_back(std::move(tool));
  }
}

void read_tool_choice(const JsonFields& body, ServiceRequest& request, ChatRequest& chat) {
  const std::optional<JsonFields> choice = body.object("tool_choice");
  if (!choice) return;
  request.allows_parallel_calls = !choice->flag("disable_parallel_tool_use").value_or(false);
  const std::string& type = choice->required_string("type");
  if (type == "none") {
    chat.tool_choice = ToolChoice::kNone;
  } else if (type == "any") {
    chat.tool_choice = ToolChoice::kRequired;
  } else if (type == "tool") {
    chat.tool_choice = ToolChoice::kNamed;
    chat.tool_choice_name = choice->required_string("name");
  } else if (type != "auto") {
    choice->fail("type", fmt::format("\"{}\" is none of auto, any, tool, none", printable(type, 40)));
  }
}

void read_thinking(const JsonFields& body, ChatRequest& chat) {
  const std::optional<JsonFields> thinking = body.object("thinking");
  if (thinking) {
    const std::string& type = thinking->required_string("type");
    (void)thinking->integer("budget_tokens");
    if (type != "enabled" && type != "adaptive" && type != "disabled") {
      thinking->fail("type", fmt::format("\"{}\" is none of enabled, adaptive, disabled", printable(type, 40)));
    }
    chat.is_thinking = type != "disabled";
  } else if (chat.tool_choice == ToolChoice::kRequired || chat.tool_choice == ToolChoice::kNamed) {
    chat.is_thinking = false;  // nobody asked for it, and a forced call leaves no room for it
  }
  const std::optional<JsonFields> output = body.object("output_config");
  if (!output) return;
  read_effort(*output, chat);
  const std::optional<JsonFields> format = output->object("format");
  if (!format) return;
  if (format->required_string("type") != "json_schema") format->fail("type", "must be \"json_schema\"");
  chat.response_format = make_schema_format(*format, "output");
}

ChatRequest read_chat(const JsonFields& body, ServiceRequest& request) {
  ChatRequest chat;
  read_messages(body, chat);
  read_tools(body, chat);
  read_tool_choice(body, request, chat);
  read_thinking(body, chat);
  return chat;
}

/// `metadata.user_id` without the session that Claude Code puts into it, "user_1_account_2_session_3" or JSON with a
/// member "session_id": sessions of one user begin with the same tools and instructions, and share them.
std::string read_user(const JsonFields& body) {
  const std::optional<JsonFields> metadata = body.object("metadata");
  const std::string user = metadata ? metadata->string_or("user_id", "") : "";
  if (!user.starts_with('{')) return user.substr(0, user.find("_session_"));
  try {
    const Json parts = parse_json(user);
    Json lasting = Json::make_object();
    for (const JsonMember& part : parts.as_object()) {
      if (part.key != "session_id") lasting.set(part.key, part.value);
    }
    return write_json(lasting);
  } catch (const Error&) {
    return user;  // a name that happens to begin with a brace
  }
}

}  // namespace

ApiCall read_call(const Json& body, const ApiContext& context) {
  const JsonFields fields(body);
  ServiceRequest request;
  request.sampling = context.sampling;
  request.sampling.seed = context.seed;
  request.max_tokens = fields.integer("max_tokens", 1);
  if (!request.max_tokens) fields.fail("max_tokens", "is missing");
  read_basic_sampling(fields, request.sampling);
  request.stops = read_stops(fields, "stop_sequences");
  request.cache_salt = read_cache_salt(fields, read_user(fields));
  ChatRequest chat = read_chat(fields, request);
  WriterOptions options;
  options.is_stream = fields.flag("stream").value_or(false);
  options.stops = request.stops;
  request.prompt = std::move(chat);

  ApiCall call;
  call.is_stream = options.is_stream;
  call.keep_alive = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
  call.writer = make_writer(context.info, std::move(options));
  call.requests.push_back(std::move(request));
  return call;
}

ServiceRequest read_count_request(const Json& body) {
  ServiceRequest request;
  request.prompt = read_chat(JsonFields(body), request);
  return request;
}

}  // namespace tidepool::messages
