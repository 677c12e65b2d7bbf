#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_encoding.h"
#include "text/completion_parser.h"
#include "text/json.h"

namespace tidepool {

/// A function the model may call.
struct ToolDefinition {
  std::string name;
  /// Namespace of `name`, empty: none, or `name` is written `space::name`.
  std::string space;
  std::string space_description;
  std::string description;
  /// JSON schema of the arguments.
  Json parameters = Json::make_object();
  /// Whether arguments must be held to the schema while they are generated. Not shown to the model.
  bool is_strict = false;
};

enum class ToolChoice {
  kAuto,
  kNone,      ///< tools are not even shown to the model
  kRequired,  ///< the output begins inside a calls block
  kNamed,     ///< the same, with one tool
};

/// A request for one assistant turn, whatever API it came through. The parts of it that shape the prompt; sampling and
/// transport are not here.
struct ChatRequest {
  /// Tools and response formats of single messages are overwritten by those below.
  std::vector<ChatMessage> messages;
  std::vector<ToolDefinition> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  /// kNamed: the tool, as its definition writes its qualified name.
  std::string tool_choice_name;
  bool is_thinking = true;
  /// 1..100; has no effect unless thinking.
  int effort = 75;
  /// Leave out the reasoning of earlier turns in conversations without tools.
  bool drops_reasoning = true;
  /// The object {"type": "json_object"} or {"type": "json_schema", ...} as the client sent it.
  std::optional<Json> response_format;
  /// Go on with the text of the last message, an assistant message, instead of opening a new turn.
  bool continues_last_message = false;
};

/// What a request is to the engine and to the parser of its output.
struct PreparedChat {
  ChatPrompt prompt;
  OutputStart output_starts_in = OutputStart::kContent;
  /// Whether tools were shown, so that call markup in the output means a call.
  bool has_tools = false;
};

/// Reads the prompt-shaping fields of a chat completions request: `messages`, `tools`, `tool_choice`,
/// `response_format`, `thinking`, `reasoning_effort`, `drop_thinking`, `chat_template_kwargs`,
/// `continue_final_message`, `add_generation_prompt`. Other fields are not looked at. Throws Error(kInvalidArgument);
/// the message begins with the path of the field, as in "messages[2].content: ...".
[[nodiscard]] ChatRequest parse_chat_request(const Json& body);

/// The effort that an API's name or number stands for; names of other services' tiers fall into the model's three.
/// Nothing for any other value.
[[nodiscard]] std::optional<int> try_request_effort(const Json& effort);

/// Refuses conversations that cannot be answered: no messages, calls without their results or results without their
/// calls, images outside user and tool messages, unusable or repeated tool names, a tool choice that cannot be kept,
/// control texts that stand for images. Throws Error(kInvalidArgument) like parse_chat_request.
void check_chat_request(const ChatRequest& request);

/// Checks and renders a request.
[[nodiscard]] PreparedChat encode_chat_request(const ChatRequest& request);

}  // namespace tidepool
