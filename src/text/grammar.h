#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/chat_request.h"
#include "text/completion_parser.h"
#include "text/grammar_automaton.h"
#include "text/grammar_json.h"
#include "text/json.h"

namespace tidepool {

/// What an output must look like. docs/structured_output.md describes the language in full.
struct OutputGrammar {
  struct Tool {
    /// As the model sees it, `space::name` if it has a namespace.
    std::string name;
    Json parameters = Json::make_object();
    /// Whether a schema that cannot be honoured is an error; otherwise the tool's parameters are then untyped.
    bool is_strict = false;
    /// Stands in front of messages about the parameters.
    std::string path;
  };
  enum class Content : uint8_t {
    kNone,  ///< no answer, only calls
    kFree,  ///< any text
    kJson,  ///< one JSON value that satisfies `schema`
  };
  enum class Calls : uint8_t { kNone, kPossible, kRequired };

  /// Where the output begins. Reasoning is free, and the grammar holds from its end on.
  OutputStart start = OutputStart::kContent;
  Content content = Content::kFree;
  Json schema = Json::make_bool(true);
  std::string schema_path;
  Calls calls = Calls::kNone;
  std::vector<Tool> tools;
  bool allows_parallel = true;  ///< several calls in one block
};

/// Longest text of all schemas of one grammar together.
inline constexpr size_t kGrammarBytesMax = size_t{1} << 20;

/// The grammar that a request asks for by `response_format`, `tool_choice` and strict tools; nothing when it asks for
/// none. `start`: where its output begins. Throws Error(kInvalidArgument) naming the field.
[[nodiscard]] std::optional<OutputGrammar> output_grammar_of(const ChatRequest& request, OutputStart start,
                                                             bool allows_parallel);

/// A text that is equal only for equal grammars.
[[nodiscard]] std::string grammar_key(const OutputGrammar& grammar);

struct MadeGrammar {
  GrammarAutomaton automaton;
  /// Tools that are not strict and whose parameters are not held to their schema; each with the reason.
  std::vector<std::string> untyped_tools;
};

/// Throws Error(kInvalidArgument) naming path and keyword of what cannot be honoured, or the limit that is exceeded.
[[nodiscard]] MadeGrammar make_grammar(const OutputGrammar& grammar, MarkForm form);

}  // namespace tidepool
