#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "text/chat_encoding_internal.h"
#include "text/dsml.h"

namespace tidepool {

namespace {

constexpr std::string_view kToolsHead =
    "\n\n## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. "
    "You can invoke tools by writing a \"<｜DSML｜ calls>\" block like the following:\n\n"
    "<｜DSML｜ calls>\n"
    "<｜DSML｜ invoke name=\"$TOOL_NAME\">\n"
    "<｜DSML｜ parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜ parameter>\n"
    "...\n"
    "</｜DSML｜ invoke>\n"
    "<｜DSML｜ invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜ invoke>\n"
    "</｜DSML｜ calls>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. "
    "For all other types (numbers, booleans, arrays, objects), "
    "pass the value in JSON format and set `string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by <think>), "
    "you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
constexpr std::string_view kToolsTail =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

[[noreturn]] void refuse_tool(size_t index, std::string_view what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("tools[{}]: {}", index, what));
}

struct Namespace {
  std::string name;
  std::string description;
};

std::string string_or_empty(const Json* value, size_t index, std::string_view field) {
  if (value == nullptr || value->is_null()) return "";
  if (!value->is_string()) refuse_tool(index, fmt::format("{} must be a string", field));
  return value->as_string();
}

Namespace tool_namespace(const Json& tool, const Json& function, size_t index) {
  const Json* space = tool.find("namespace");
  if (space == nullptr || space->is_null()) space = function.find("namespace");
  if (space == nullptr || space->is_null()) return {};
  if (space->is_object()) {
    return {string_or_empty(space->find("name"), index, "namespace.name"),
            string_or_empty(space->find("description"), index, "namespace.description")};
  }
  return {string_or_empty(space, index, "namespace"), ""};
}

/// The function object as the prompt shows it: qualified name, namespace description in front of the tool's own, no
/// `namespace` key.
Json shown_function(const Json& tool, size_t index) {
  const Json* function = tool.find("function");
  if (function == nullptr || !function->is_object()) refuse_tool(index, "function must be an object");
  const Json* name = function->find("name");
  if (name == nullptr || !name->is_string()) refuse_tool(index, "function.name must be a string");
  const Namespace space = tool_namespace(tool, *function, index);
  Json shown = Json::make_object();
  for (const JsonMember& member : function->as_object()) {
    if (member.key != "namespace") shown.as_object().push_back(member);
  }
  try {
    shown.set("name", Json::make_string(qualify_tool_name(name->as_string(), space.name)));
  } catch (const Error& error) {
    refuse_tool(index, error.what());
  }
  if (!space.description.empty()) {
    const std::string own = string_or_empty(function->find("description"), index, "function.description");
    shown.set("description", Json::make_string(space.description + "\n" + own));
  }
  return shown;
}

/// Reads arguments text as JSON, again while the result is a string, twice at most; nothing unless that gives an
/// object.
std::optional<Json> decode_arguments(const Json& arguments) {
  constexpr int kDecodesMax = 2;
  Json value = arguments;
  for (int i = 0; i < kDecodesMax && value.is_string(); ++i) {
    try {
      value = parse_json(value.as_string(), {.allows_nonfinite = true});
    } catch (const Error&) {
      return std::nullopt;  // text that is no JSON is an ordinary outcome: it is shown as it is
    }
  }
  if (!value.is_object()) return std::nullopt;
  return value;
}

void append_parameter(ChatPrompt& prompt, std::string_view key, const Json& value) {
  append_template(prompt, "<｜DSML｜ parameter");
  append_plain(prompt, fmt::format(" name=\"{}\" string=\"{}\">", key, value.is_string()));
  append_plain(prompt, value.is_string() ? value.as_string() : write_json(value));
  append_template(prompt, "</｜DSML｜ parameter>");
}

void append_call(ChatPrompt& prompt, const ToolCall& call) {
  append_template(prompt, "<｜DSML｜ invoke");
  append_plain(prompt, fmt::format(" name=\"{}\">\n", qualify_tool_name(call.name, call.space)));
  const std::optional<Json> arguments = decode_arguments(call.arguments);
  if (arguments) {
    std::string_view separator;
    for (const JsonMember& member : arguments->as_object()) {
      append_plain(prompt, separator);
      append_parameter(prompt, member.key, member.value);
      separator = "\n";
    }
  } else {
    append_parameter(prompt, "arguments", call.arguments);
  }
  append_template(prompt, "\n</｜DSML｜ invoke>\n");
}

}  // namespace

void append_tools(ChatPrompt& prompt, const std::vector<Json>& tools) {
  append_template(prompt, kToolsHead);
  for (size_t i = 0; i < tools.size(); ++i) {
    if (i > 0) append_plain(prompt, "\n");
    append_plain(prompt, write_json(shown_function(tools[i], i)));
  }
  append_template(prompt, kToolsTail);
}

void append_calls(ChatPrompt& prompt, const std::vector<ToolCall>& calls) {
  append_template(prompt, dsml::kCallsOpening);
  for (const ToolCall& call : calls)
    append_call(prompt, call);
  append_template(prompt, dsml::kCallsEnd);
}

}  // namespace tidepool
