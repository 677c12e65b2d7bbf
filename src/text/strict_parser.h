#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/chat_encoding.h"

namespace tidepool {

/// A tool call as the model wrote it.
struct ParsedCall {
  /// Empty: none.
  std::string space;
  std::string name;
  /// Text of a JSON object: keys and string values escaped, other values verbatim and unchecked.
  std::string arguments;
};

/// An assistant message read from generated text.
struct ParsedMessage {
  std::string content;
  /// Empty in chat mode.
  std::string reasoning;
  std::vector<ParsedCall> tool_calls;
};

/// Reads a finished completion, its end-of-sentence text included, exactly as the encoder would have written it.
/// Anything else is refused: Error(kInvalidArgument) with the byte position. What a model may have written less
/// carefully is for CompletionParser.
[[nodiscard]] ParsedMessage parse_completion_strictly(std::string_view completion, ThinkingMode mode);

}  // namespace tidepool
