#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_encoding.h"

namespace tidepool {

/// A conversation ready to be rendered: no tool messages, one message per user turn, results in call order.
struct NormalConversation {
  /// The context's messages, then those to render.
  std::vector<ChatMessage> messages;
  /// How many of them are context.
  size_t context_count = 0;
  /// Index of the last message that is a user message or a system message other than the first; -1 if there is none.
  ptrdiff_t last_turn = -1;
  /// Whether reasoning before `last_turn` is left out.
  bool drops_reasoning = true;
};

/// Steps 1 to 4 before rendering: refuses literal image placeholders, folds tool messages and user runs, sorts
/// results, decides about dropping. Throws Error(kInvalidArgument).
[[nodiscard]] NormalConversation normalise_conversation(const std::vector<ChatMessage>& messages,
                                                        const ChatEncodingOptions& options);

/// Adds the texts and images of `content` joined by blank lines. Blocks of other kinds are left out.
void append_content(ChatPrompt& prompt, const std::vector<ContentBlock>& content);
/// Adds one line of JSON per tool, joined by newlines.
void append_tools(ChatPrompt& prompt, const std::vector<Json>& tools);
/// Adds the calls block of an assistant turn.
void append_calls(ChatPrompt& prompt, const std::vector<ToolCall>& calls);

}  // namespace tidepool
