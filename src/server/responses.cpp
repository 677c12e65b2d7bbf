#include "server/responses.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "server/responses_input.h"
#include "server/responses_writer.h"

namespace tidepool::responses {
namespace {

void refuse_stored(const JsonFields& body) {
  constexpr std::string_view kRemedy = "is not supported: nothing is stored here; send the whole conversation";
  for (const std::string_view key : {"previous_response_id", "conversation", "prompt"}) {
    if (body.has(key)) body.fail(key, kRemedy);
  }
  if (body.flag("background").value_or(false)) body.fail("background", "is not supported");
}

// --- tools ----------------------------------------------------------------------------------------------------------

ToolDefinition read_function(const JsonFields& fields) {
  ToolDefinition tool;
  tool.name = fields.required_string("name");
  tool.description = fields.string_or("description", "");
  if (const std::optional<JsonFields> schema = fields.object("parameters")) tool.parameters = schema->json();
  tool.is_strict = fields.flag("strict").value_or(false);
  return tool;
}

/// A tool that takes text in a grammar of the client's: for the model a function with one string, the grammar in its
/// description.
ToolDefinition read_custom(const JsonFields& fields) {
  ToolDefinition tool;
  tool.name = fields.required_string("name");
  tool.description = fields.string_or("description", "");
  if (const std::optional<JsonFields> format = fields.object("format")) {
    const std::string definition = format->string_or("definition", "");
    if (!definition.empty()) {
      tool.description += fmt::format("\n\nThe input must follow this {} grammar:\n{}",
                                      format->string_or("syntax", "formal"), definition);
    }
  }
  tool.parameters =
      parse_json(R"({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]})");
  return tool;
}

void read_tool(const JsonFields& fields, ChatRequest& chat, WriterOptions& options) {
  const std::string& type = fields.required_string("type");
  if (type == "function") {
    chat.tools.push_back(read_function(fields));
  } else if (type == "custom") {
    chat.tools.push_back(read_custom(fields));
    options.custom_tools.insert(chat.tools.back().name);
  } else if (type == "namespace") {
    const std::string& space = fields.required_string("name");
    const Json::Array* tools = fields.list("tools");
    if (tools == nullptr) fields.fail("tools", "is missing");
    for (size_t i = 0; i < tools->size(); ++i) {
      ToolDefinition tool = read_function(JsonFields((*tools)[i], element_path(fields.path("tools"), i)));
      tool.space = space;
      tool.space_description = fields.string_or("description", "");
      chat.tools.push_back(std::move(tool));
    }
  } else {
    log_warning("a tool of type {} is left out: this server runs none of its own", printable(type, 40));
  }
}

void read_tools(const JsonFields& body, ChatRequest& chat, WriterOptions& options) {
  const Json::Array* tools = body.list("tools");
  if (tools == nullptr) return;
  for (size_t i = 0; i < tools->size(); ++i)
    read_tool(JsonFields((*tools)[i], element_path("tools", i)), chat, options);
}

void read_tool_choice(const JsonFields& body, ChatRequest& chat) {
  const Json* choice = body.find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_object()) {
    const JsonFields fields(*choice, "tool_choice");
    const std::string& type = fields.required_string("type");
    if (type != "function" && type != "custom") {
      fields.fail("type", fmt::format("\"{}\" is not supported", printable(type, 40)));
    }
    chat.tool_choice = ToolChoice::kNamed;
    chat.tool_choice_name = fields.required_string("name");
    return;
  }
  const std::string& name = body.required_string("tool_choice");
  if (name == "none") {
    chat.tool_choice = ToolChoice::kNone;
  } else if (name == "required") {
    chat.tool_choice = ToolChoice::kRequired;
  } else if (name != "auto") {
    body.fail("tool_choice", fmt::format("\"{}\" is none of auto, none, required", printable(name, 40)));
  }
}

// --- thinking and format --------------------------------------------------------------------------------------------

void read_reasoning(const JsonFields& body, ChatRequest& chat) {
  const std::optional<JsonFields> reasoning = body.object("reasoning");
  const Json* effort = reasoning ? reasoning->find("effort") : nullptr;
  if (effort == nullptr) {
    // Nobody asked for thinking, and a forced call leaves no room for it.
    const bool is_forced = chat.tool_choice == ToolChoice::kRequired || chat.tool_choice == ToolChoice::kNamed;
    chat.is_thinking = !is_forced;
    return;
  }
  chat.is_thinking = !(effort->is_string() && effort->as_string() == "none");
  if (chat.is_thinking) read_effort(*reasoning, chat);
}

void read_format(const JsonFields& body, ChatRequest& chat) {
  const std::optional<JsonFields> text = body.object("text");
  if (!text) return;
  (void)text->string("verbosity");
  const std::optional<JsonFields> format = text->object("format");
  if (!format) return;
  const std::string& type = format->required_string("type");
  if (type == "json_object") {
    chat.response_format = Json::make_object();
    chat.response_format->set("type", Json::make_string(type));
  } else if (type == "json_schema") {
    chat.response_format = make_schema_format(*format, "output");
  } else if (type != "text") {
    format->fail("type", fmt::format("\"{}\" is none of text, json_object, json_schema", printable(type, 40)));
  }
}

void read_logprobs(const JsonFields& body, ServiceRequest& request) {
  if (const std::optional<int64_t> top = body.integer("top_logprobs", 0, kTopLogprobsMax)) {
    request.wants_logprobs = *top > 0;
    request.sampling.top_logprobs = *top;
  }
  const Json::Array* include = body.list("include");
  if (include == nullptr) return;
  for (const Json& what : *include) {
    if (!what.is_string()) body.fail("include", "must be a list of strings");
    if (what.as_string() == "message.output_text.logprobs") request.wants_logprobs = true;
  }
}

/// What the answer repeats of the request.
void keep_echoes(const JsonFields& body, const ServiceRequest& request, WriterOptions& options) {
  for (const std::string_view key :
       {"instructions", "max_output_tokens", "metadata", "reasoning", "text", "tool_choice", "tools"}) {
    if (const Json* value = body.find(key)) options.echoes.set(key, *value);
  }
  options.temperature = request.sampling.temperature;
  options.top_p = request.sampling.top_p;
  options.allows_parallel_calls = request.allows_parallel_calls;
}

}  // namespace

ApiCall read_call(const Json& body, const ApiContext& context) {
  const JsonFields fields(body);
  refuse_stored(fields);
  ServiceRequest request;
  request.sampling = context.sampling;
  request.sampling.seed = context.seed;
  WriterOptions options;
  ChatRequest chat;
  chat.messages = read_input(fields);
  read_tools(fields, chat, options);
  read_tool_choice(fields, chat);
  read_reasoning(fields, chat);
  read_format(fields, chat);
  read_basic_sampling(fields, request.sampling);
  read_logprobs(fields, request);
  request.max_tokens = fields.integer("max_output_tokens", 1);
  request.allows_parallel_calls = fields.flag("parallel_tool_calls").value_or(true);
  request.cache_salt = read_cache_salt(fields, fields.string_or("user_id", ""));
  (void)fields.flag("store");
  keep_echoes(fields, request, options);
  options.is_stream = fields.flag("stream").value_or(false);
  options.is_thinking = chat.is_thinking;
  options.has_logprobs = request.wants_logprobs;
  request.prompt = std::move(chat);

  ApiCall call;
  call.is_stream = options.is_stream;
  call.writer = make_writer(context.info, std::move(options));
  call.requests.push_back(std::move(request));
  return call;
}

}  // namespace tidepool::responses
