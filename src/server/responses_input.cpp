#include "server/responses_input.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "text/dsml.h"

namespace tidepool::responses {
namespace {

ContentBlock text_block(std::string text) {
  ContentBlock block;
  block.text = std::move(text);
  return block;
}

ChatMessage text_message(ChatRole role, std::string text) {
  ChatMessage message;
  message.role = role;
  message.content.push_back(text_block(std::move(text)));
  return message;
}

void append_joined(std::string& text, const std::string& more, std::string_view separator) {
  if (!text.empty() && !more.empty()) text += separator;
  text += more;
}

ContentBlock read_image(const JsonFields& part) {
  // The API has a string here; some clients send the object of chat completions.
  const Json* url = part.find("image_url");
  if (url == nullptr) part.fail("image_url", "is missing");
  ContentBlock image;
  image.kind = ContentBlock::Kind::kImage;
  image.image = Json::make_object();
  image.image.set("type", Json::make_string("image"));
  const std::string& text = url->is_object() ? JsonFields(*url, part.path("image_url")).required_string("url")
                                             : part.required_string("image_url");
  image.image.set("url", Json::make_string(text));
  return image;
}

std::vector<ContentBlock> read_content(const JsonFields& item, std::string_view key) {
  const Json* content = item.find(key);
  if (content == nullptr) return {};
  if (content->is_string()) return {text_block(content->as_string())};
  if (!content->is_array()) item.fail(key, "must be a string or a list of parts");
  std::vector<ContentBlock> blocks;
  for (size_t i = 0; i < content->as_array().size(); ++i) {
    const JsonFields part(content->as_array()[i], element_path(item.path(key), i));
    const std::string& type = part.required_string("type");
    if (type == "input_text" || type == "output_text" || type == "text") {
      blocks.push_back(text_block(part.required_string("text")));
    } else if (type == "refusal") {
      blocks.push_back(text_block(part.required_string("refusal")));
    } else if (type == "input_image") {
      blocks.push_back(read_image(part));
    } else {
      part.fail("type", fmt::format("\"{}\" is not supported", printable(type, 40)));
    }
  }
  return blocks;
}

/// The words of a reasoning item. Its summary is not what the model thought, and is left out.
std::string read_reasoning(const JsonFields& item) {
  std::string text;
  const Json::Array* content = item.list("content");
  if (content == nullptr) return text;
  for (size_t i = 0; i < content->size(); ++i) {
    const JsonFields part((*content)[i], element_path(item.path("content"), i));
    append_joined(text, part.string_or("text", ""), "\n");
  }
  return text;
}

/// Puts the items together to messages: what the assistant said in a row is one turn, with the outputs of its calls
/// right behind it.
class Conversation {
 public:
  explicit Conversation(std::vector<ChatMessage>& messages) : messages_(messages) {}

  /// Outputs may stand anywhere behind their call.
  void note_output(const JsonFields& item) {
    const std::string& id = item.required_string("call_id");
    ChatMessage result;
    result.role = ChatRole::kTool;
    result.tool_call_id = id;
    result.content = read_content(item, "output");
    if (!outputs_.emplace(id, Output{std::move(result), item.path("call_id"), false}).second) {
      item.fail("call_id", "has an output already");
    }
  }
  void add_reasoning(const JsonFields& item) { append_joined(turn().reasoning, read_reasoning(item), "\n"); }
  void add_assistant_text(const JsonFields& item) {
    for (const ContentBlock& block : read_content(item, "content")) {
      if (block.kind != ContentBlock::Kind::kText) item.fail("content", "images are possible in user messages only");
      (void)turn();
      append_joined(text_, block.text, "\n\n");
    }
  }
  void add_call(const JsonFields& item, Json arguments) {
    ToolCall call;
    call.id = item.required_string("call_id");
    call.name = item.required_string("name");
    call.space = item.string_or("namespace", "");
    call.arguments = std::move(arguments);
    const auto output = outputs_.find(call.id);
    if (output == outputs_.end()) item.fail("call_id", "has no output in this input");
    if (output->second.is_used) item.fail("call_id", "is used by another call");
    output->second.is_used = true;
    turn().tool_calls.push_back(std::move(call));
  }
  void add_message(ChatMessage message) {
    end_turn();
    messages_.push_back(std::move(message));
  }
  void end_turn() {
    if (!turn_) return;
    if (!text_.empty()) turn_->content.push_back(text_block(std::exchange(text_, {})));
    std::vector<ChatMessage> results;
    results.reserve(turn_->tool_calls.size());
    for (const ToolCall& call : turn_->tool_calls)
      results.push_back(outputs_.find(call.id)->second.message);
    if (!turn_->content.empty() || !turn_->reasoning.empty() || !turn_->tool_calls.empty()) {
      messages_.push_back(std::move(*turn_));
    }
    for (ChatMessage& result : results)
      messages_.push_back(std::move(result));
    turn_.reset();
  }
  /// An output: what follows it is another turn.
  void pass_output() {
    if (turn_ && !turn_->tool_calls.empty()) end_turn();
  }
  void check_outputs() const {
    for (const auto& [id, output] : outputs_) {
      if (!output.is_used) refuse_field(output.path, "is the output of no call in this input");
    }
  }

 private:
  struct Output {
    ChatMessage message;
    std::string path;
    bool is_used = false;
  };
  ChatMessage& turn() {
    if (!turn_) {
      turn_.emplace();
      turn_->role = ChatRole::kAssistant;
    }
    return *turn_;
  }

  std::vector<ChatMessage>& messages_;
  std::map<std::string, Output> outputs_;
  std::optional<ChatMessage> turn_;  ///< the assistant's, under way
  std::string text_;                 ///< of the turn
};

void add_message(const JsonFields& item, bool is_first, Conversation& conversation) {
  const std::string& role = item.required_string("role");
  if (role == "assistant") return conversation.add_assistant_text(item);
  ChatMessage message;
  if (role == "user") {
    message.role = ChatRole::kUser;
  } else if (role == "system") {
    message.role = ChatRole::kSystem;
  } else if (role == "developer") {
    message.role = is_first ? ChatRole::kSystem : ChatRole::kUser;
  } else {
    item.fail("role", fmt::format("\"{}\" is none of system, developer, user, assistant", printable(role, 40)));
  }
  message.content = read_content(item, "content");
  conversation.add_message(std::move(message));
}

void add_item(const JsonFields& item, bool is_first, Conversation& conversation) {
  const std::string type = item.string_or("type", "message");
  if (type == "message") return add_message(item, is_first, conversation);
  if (type == "reasoning") return conversation.add_reasoning(item);
  if (type == "function_call") {
    return conversation.add_call(item, Json::make_string(item.required_string("arguments")));
  }
  if (type == "custom_tool_call") {
    Json arguments = Json::make_object();
    arguments.set("input", Json::make_string(item.required_string("input")));
    return conversation.add_call(item, std::move(arguments));
  }
  if (type == "function_call_output" || type == "custom_tool_call_output") return conversation.pass_output();
  if (type == "item_reference") item.fail("type", "items are not stored here: send the item itself");
  log_info("an input item of type {} is left out", printable(type, 40));
}

}  // namespace

std::vector<ChatMessage> read_input(const JsonFields& body) {
  std::vector<ChatMessage> messages;
  if (const std::string* instructions = body.string("instructions")) {
    messages.push_back(text_message(ChatRole::kSystem, *instructions));
  }
  const Json* input = body.find("input");
  if (input == nullptr) body.fail("input", "is missing");
  if (input->is_string()) {
    messages.push_back(text_message(ChatRole::kUser, input->as_string()));
    return messages;
  }
  if (!input->is_array()) body.fail("input", "must be a string or a list of items");
  Conversation conversation(messages);
  const Json::Array& items = input->as_array();
  for (size_t i = 0; i < items.size(); ++i) {
    const JsonFields item(items[i], element_path("input", i));
    const std::string type = item.string_or("type", "message");
    if (type == "function_call_output" || type == "custom_tool_call_output") conversation.note_output(item);
  }
  for (size_t i = 0; i < items.size(); ++i)
    add_item(JsonFields(items[i], element_path("input", i)), i == 0 && messages.empty(), conversation);
  conversation.end_turn();
  conversation.check_outputs();
  if (messages.empty()) body.fail("input", "must not be empty");
  return messages;
}

}  // namespace tidepool::responses
