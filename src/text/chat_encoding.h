#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/json.h"

namespace tidepool {

enum class ThinkingMode { kChat, kThinking };

enum class ChatRole { kSystem, kUser, kAssistant, kTool, kLatestReminder };

/// One piece of a message's content.
struct ContentBlock {
  enum class Kind {
    kText,
    kImage,       ///< becomes one placeholder token in the prompt and one image record
    kToolResult,  ///< the answer to a call, inside a user message
    kOther,       ///< a type the format has no text for; user turns name it, elsewhere it is left out
  };
  Kind kind = Kind::kText;
  /// kText: the text. kOther: the name of the type.
  std::string text;
  /// kImage: the record for whoever loads the picture, {"type": "image", "url" | "source" | "data": ...}.
  Json image;
  /// kToolResult: the id of the call answered; may be empty.
  std::string tool_use_id;
  /// kToolResult: what the tool answered.
  std::vector<ContentBlock> content;
};

struct ToolCall {
  /// Empty: the call has none, and its result keeps its place.
  std::string id;
  std::string name;
  /// Namespace of `name`; empty: none, or `name` is written `space::name`.
  std::string space;
  /// An object, or a string that holds JSON text.
  Json arguments;
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  /// Rendered joined by blank lines. kTool: what the tool answered.
  std::vector<ContentBlock> content;
  /// kAssistant only.
  std::string reasoning;
  std::vector<ToolCall> tool_calls;
  /// kAssistant: the turn is not closed, so that generation can go on with its text.
  bool is_open = false;
  /// kTool: the id of the call answered.
  std::string tool_call_id;
  /// Short auxiliary task that follows this message: action, query, authority, domain, title or read_url; else empty.
  std::string task;
  /// Tool definitions as {"function": {...}} objects. Rendered in system messages; anywhere they keep old reasoning.
  std::vector<Json> tools;
  /// kSystem: schema for the answer.
  std::optional<Json> response_format;
};

struct ChatEncodingOptions {
  ThinkingMode mode = ThinkingMode::kChat;
  /// 1..100, written into the prompt in thinking mode.
  int effort = 75;
  /// Leave out the reasoning of turns before the last user or mid-conversation system message. Has no effect when any
  /// message has tools.
  bool drops_reasoning = true;
  bool adds_begin_of_sentence = true;
  /// Messages whose prompt text exists already: they shape the result but are not rendered again.
  std::vector<ChatMessage> context{};
};

/// A stretch of a prompt's text: one control token, or text between control tokens.
struct PromptRun {
  size_t begin = 0;
  size_t bytes = 0;
  bool is_control_token = false;
};

/// Where one assistant message of a conversation stands in the prompt's text. Bytes [begin, body) are its reasoning and
/// the end of it, where the template keeps them; [body, end) are content and calls.
struct PromptTurn {
  size_t begin = 0;
  size_t body = 0;
  size_t end = 0;
  bool has_reasoning = false;  ///< the template keeps reasoning here, if only an empty one
};

/// A rendered conversation.
struct ChatPrompt {
  std::string text;
  /// Covers `text` without gaps. Control tokens are only where the template put them: text of a user that merely looks
  /// like one is in a plain run, and must be tokenized without recognising added tokens. Plain runs are never
  /// adjacent.
  std::vector<PromptRun> runs;
  /// The assistant messages that were rendered, in order.
  std::vector<PromptTurn> turns;
  /// The records of the image placeholders, in prompt order.
  std::vector<Json> images;
};

/// Renders a conversation as the model was trained to read it. Throws Error(kInvalidArgument) naming the message (its
/// index, counted from 0 after the context) and the field.
[[nodiscard]] ChatPrompt encode_chat(const std::vector<ChatMessage>& messages, const ChatEncodingOptions& options);

/// Refuses messages that encode_chat would refuse, so that a caller who inserts messages can name the client's own.
void check_chat_messages(const std::vector<ChatMessage>& messages);

/// The same things from JSON as the reference encoder takes them: a list of messages with `role`, `content`,
/// `content_blocks`, `reasoning_content`, `tool_calls`, `wo_eos`, `tool_call_id`, `task`, `tools`, `response_format`.
[[nodiscard]] std::vector<ChatMessage> parse_chat_messages(const Json& messages);
/// Options `thinking_mode`, `reasoning_effort`, `drop_thinking`, `add_default_bos_token`; `context` is not read here.
[[nodiscard]] ChatEncodingOptions parse_chat_encoding_options(const Json& options);

/// The number of an effort name (low 50, high 75, max 100) or of an integer 1..100; nothing for any other value.
[[nodiscard]] std::optional<int> try_effort(const Json& value);

/// Adds to a prompt: `text` in which the control tokens of the format are recognised, for what a template says.
void append_template(ChatPrompt& prompt, std::string_view text);
/// Adds to a prompt: `text` as a plain run.
void append_plain(ChatPrompt& prompt, std::string_view text);

}  // namespace tidepool
