#include "text/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "text/dsml.h"

namespace tidepool {

namespace {

using Content = OutputGrammar::Content;
using Calls = OutputGrammar::Calls;

/// Writes the root rule and those of the tools.
class GrammarMaker {
 public:
  GrammarMaker(const OutputGrammar& grammar, MarkForm form)
      : grammar_(grammar), mark_(mark_bytes(form)), shared_(builder_, form) {}

  MadeGrammar make() {
    RuleNfa root;
    uint32_t state = RuleNfa::kStart;
    if (grammar_.start == OutputStart::kReasoning) {
      const uint32_t reasoning = root.add_state();
      root.add_empty(state, reasoning);
      root.add_edge(reasoning, 0, kThinkEndByte - 1, reasoning);
      root.set_free(reasoning);
      state = root.add_state();
      root.add_edge(reasoning, kThinkEndByte, kThinkEndByte, state);
    }
    if (grammar_.start == OutputStart::kCalls) {
      add_calls(root, state);
    } else {
      add_answer(root, state);
    }
    const uint32_t rule = builder_.declare_rule();
    builder_.define_rule(rule, root);
    for (SchemaRules& rules : rules_)
      rules.define_rules();
    made_.automaton = builder_.finish(rule);
    return std::move(made_);
  }

 private:
  void add_answer(RuleNfa& nfa, uint32_t state) {
    const std::string opening = "<" + mark_ + " calls>\n";
    switch (grammar_.content) {
      case Content::kNone: break;
      case Content::kJson: {
        SchemaRules& rules = rules_of(parse_json_schema(grammar_.schema, grammar_.schema_path));
        rules.add_value(nfa, state, schemas_.back()->root, RuleNfa::kEnd);
        break;
      }
      case Content::kFree: {
        const uint32_t text = nfa.add_state();
        nfa.add_empty(state, text);
        add_free_text(nfa, text);
        nfa.add_empty(text, RuleNfa::kEnd);
        if (grammar_.calls != Calls::kNone) add_calls(nfa, nfa.add_text(text, opening));
        return;
      }
    }
    if (grammar_.calls != Calls::kNone) add_calls(nfa, nfa.add_text(state, "\n\n" + opening));
  }

  /// Any text; with a control token for the mark also any other token.
  void add_free_text(RuleNfa& nfa, uint32_t state) {
    if (shared_.mark_form() == MarkForm::kControlToken) {
      nfa.add_edge(state, 0, kThinkEndByte - 1, state);
      nfa.set_free(state);
    } else {
      nfa.add_edge(state, 0, 0x7F, state);
      nfa.add_call(state, shared_.utf8_char(), state);
    }
  }

  /// The inside of a calls block, behind its opening line.
  void add_calls(RuleNfa& nfa, uint32_t from) {
    const uint32_t begin = nfa.add_state();
    nfa.add_empty(from, begin);
    const uint32_t name = nfa.add_text(begin, "<" + mark_ + " invoke name=\"");
    const uint32_t behind = nfa.add_state();
    for (const OutputGrammar::Tool& tool : grammar_.tools)
      nfa.add_call(nfa.add_text(name, tool.name + "\">\n"), tool_rule(tool), behind);
    if (grammar_.allows_parallel) nfa.add_empty(behind, begin);
    nfa.add_text(behind, "</" + mark_ + " calls>", RuleNfa::kEnd);
  }

  SchemaRules& rules_of(JsonSchema schema) {
    schemas_.push_back(std::make_unique<const JsonSchema>(std::move(schema)));
    return rules_.emplace_back(shared_, *schemas_.back());
  }

  uint32_t tool_rule(const OutputGrammar::Tool& tool) {
    std::optional<JsonSchema> schema;
    try {
      schema = parse_json_schema(tool.parameters, tool.path);
      check_parameters(*schema, tool.path);
    } catch (const Error& error) {
      if (tool.is_strict) throw;
      made_.untyped_tools.push_back(fmt::format("{}: {}", tool.name, error.what()));
      schema.reset();
    }
    if (!schema && untyped_rule_) return *untyped_rule_;
    const bool is_untyped = !schema.has_value();
    if (!schema) schema = parse_json_schema(Json::make_bool(true), "parameters");
    SchemaRules& rules = rules_of(*std::move(schema));
    const JsonSchema& known = *schemas_.back();
    RuleNfa nfa;
    for (const ObjectSpec& object : known.nodes[known.root].objects)
      add_parameters(nfa, rules, object);
    const uint32_t rule = builder_.declare_rule();
    builder_.define_rule(rule, nfa);
    if (is_untyped) untyped_rule_ = rule;
    return rule;
  }

  static void check_parameters(const JsonSchema& schema, const std::string& path) {
    const std::vector<ObjectSpec>& objects = schema.nodes[schema.root].objects;
    const auto refuse = [&path](const std::string& what) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path, what));
    };
    if (objects.empty()) refuse("type: the schema of a tool's parameters must allow an object");
    for (const ObjectSpec& object : objects) {
      for (const ObjectSpec::Property& property : object.properties) {
        const bool is_writable =
            property.name.find("｜") == std::string::npos && std::ranges::none_of(property.name, [](char c) {
              return (c >= 0 && c < 0x20) || c == '"' || c == '<' || c == '>';
            });
        if (!is_writable)
          refuse(fmt::format("properties: the name \"{}\" cannot be written in a tag of a call", property.name));
      }
    }
  }

  /// What follows the opening line of a call: its parameters in the order of the schema, and its closing line.
  void add_parameters(RuleNfa& nfa, SchemaRules& rules, const ObjectSpec& object) {
    const size_t count = object.properties.size();
    const std::string closing = "</" + mark_ + " invoke>\n";
    const std::string opening = "<" + mark_ + " parameter name=\"";
    // keys[i]: in the tag, the next name is that of property i or a later one. behind[i]: a parameter ended.
    std::vector<uint32_t> keys;
    std::vector<uint32_t> behind;
    for (size_t i = 0; i <= count; ++i) {
      keys.push_back(nfa.add_state());
      behind.push_back(nfa.add_state());
    }
    bool may_end = true;
    for (size_t i = count + 1; i-- > 0;) {
      if (i < count) {
        const ObjectSpec::Property& property = object.properties[i];
        add_parameter(nfa, rules, nfa.add_text(keys[i], property.name + "\""), property.node, behind[i + 1]);
        if (!property.is_required) nfa.add_empty(keys[i], keys[i + 1]);
        may_end = may_end && !property.is_required;
      }
      const uint32_t line = nfa.add_text(behind[i], "\n");
      if (i < count || object.additional) nfa.add_text(line, opening, keys[i]);
      if (may_end) nfa.add_text(line, closing, RuleNfa::kEnd);
    }
    if (object.additional) {
      std::vector<std::string> names;
      for (const ObjectSpec::Property& property : object.properties)
        names.push_back(property.name);
      const uint32_t behind_key = nfa.add_state();
      nfa.add_call(keys[count], shared_.raw_key(names), behind_key);
      add_parameter(nfa, rules, behind_key, *object.additional, behind[count]);
    }
    nfa.add_text(RuleNfa::kStart, opening, keys[0]);
    if (!may_end || object.needs_member) return;
    // The reference writes an empty line for a call without parameters.
    nfa.add_text(RuleNfa::kStart, closing, RuleNfa::kEnd);
    nfa.add_text(RuleNfa::kStart, "\n" + closing, RuleNfa::kEnd);
  }

  /// Behind a parameter's name: the kind of its value, the value and the closing tag.
  void add_parameter(RuleNfa& nfa, SchemaRules& rules, uint32_t from, uint32_t node, uint32_t to) {
    const uint32_t kind = nfa.add_text(from, " string=\"");
    if (rules.has_strings(node)) rules.add_raw_strings(nfa, nfa.add_text(kind, "true\">"), node, to);
    if (!rules.has_others(node)) return;
    const uint32_t value = nfa.add_text(kind, "false\">");
    const uint32_t end = nfa.add_state();
    rules.add_value_without_strings(nfa, value, node, end);
    nfa.add_text(end, shared_.parameter_closer(), to);
  }

  const OutputGrammar& grammar_;
  std::string mark_;
  GrammarBuilder builder_;
  SharedRules shared_;
  std::vector<std::unique_ptr<const JsonSchema>> schemas_;  ///< the rules know them, and patterns are told by address
  std::deque<SchemaRules> rules_;
  std::optional<uint32_t> untyped_rule_;
  MadeGrammar made_;
};

size_t schema_bytes(const OutputGrammar& grammar) {
  size_t bytes = write_json(grammar.schema).size();
  for (const OutputGrammar::Tool& tool : grammar.tools)
    bytes += write_json(tool.parameters).size();
  return bytes;
}

/// The schema of a response format; nothing when it asks for text.
std::optional<Json> response_schema(const Json& format) {
  const auto refuse = [](std::string_view field, std::string_view what) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("response_format{}: {}", field, what));
  };
  const Json* type = format.find("type");
  if (type == nullptr || !type->is_string()) refuse(".type", "must be text, json_object or json_schema");
  if (type->as_string() == "text") return std::nullopt;
  if (type->as_string() == "json_object") return parse_json(R"({"type": "object"})");
  if (type->as_string() != "json_schema") refuse(".type", "must be text, json_object or json_schema");
  const Json* wrapper = format.find("json_schema");
  const Json* schema = wrapper == nullptr ? nullptr : wrapper->find("schema");
  if (schema == nullptr) refuse(".json_schema.schema", "is missing");
  return *schema;
}

}  // namespace

std::optional<OutputGrammar> output_grammar_of(const ChatRequest& request, OutputStart start, bool allows_parallel) {
  OutputGrammar grammar;
  grammar.start = start;
  grammar.allows_parallel = allows_parallel;
  bool is_needed = false;
  if (request.response_format) {
    if (std::optional<Json> schema = response_schema(*request.response_format)) {
      grammar.content = Content::kJson;
      grammar.schema = *std::move(schema);
      grammar.schema_path = "response_format.json_schema.schema";
      is_needed = true;
      if (start == OutputStart::kContinuation) {
        throw Error(ErrorCode::kInvalidArgument,
                    "response_format: an answer whose beginning is given cannot be held to a format");
      }
    }
  }
  if (request.tool_choice == ToolChoice::kNone || request.tools.empty())
    return is_needed ? std::optional(std::move(grammar)) : std::nullopt;
  const bool is_forced = request.tool_choice != ToolChoice::kAuto;
  grammar.calls = is_forced ? Calls::kRequired : Calls::kPossible;
  if (is_forced) grammar.content = Content::kNone;
  for (size_t i = 0; i < request.tools.size(); ++i) {
    const ToolDefinition& tool = request.tools[i];
    std::string name = qualify_tool_name(tool.name, tool.space);
    if (request.tool_choice == ToolChoice::kNamed && name != request.tool_choice_name) continue;
    is_needed = is_needed || is_forced || tool.is_strict;
    grammar.tools.push_back(
        {std::move(name), tool.parameters, tool.is_strict, fmt::format("tools[{}].function.parameters", i)});
  }
  if (!is_needed) return std::nullopt;
  return grammar;
}

std::string grammar_key(const OutputGrammar& grammar) {
  // Lengths before the texts, so that no text can look like the next field.
  std::string key = fmt::format("{} {} {} {} ", static_cast<int>(grammar.start), static_cast<int>(grammar.content),
                                static_cast<int>(grammar.calls), grammar.allows_parallel);
  const auto add = [&key](const std::string& text) { key += fmt::format("{} {} ", text.size(), text); };
  add(write_json(grammar.schema));
  for (const OutputGrammar::Tool& tool : grammar.tools) {
    add(tool.name);
    add(write_json(tool.parameters));
    add(tool.is_strict ? "strict" : "");
  }
  return key;
}

MadeGrammar make_grammar(const OutputGrammar& grammar, MarkForm form) {
  if (schema_bytes(grammar) > kGrammarBytesMax) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the schemas have more than {} bytes together",
                            grammar.tools.empty() ? grammar.schema_path : "tools", kGrammarBytesMax));
  }
  try {
    return GrammarMaker(grammar, form).make();
  } catch (const Error& error) {
    // Limits of the automaton know no path.
    const std::string message = error.what();
    const bool has_path = message.starts_with("response_format") || message.starts_with("tools");
    if (has_path) throw;
    throw Error(error.code(), fmt::format("{}: {}", grammar.tools.empty() ? grammar.schema_path : "tools", message));
  }
}

}  // namespace tidepool
