#include "text/chat_encoding.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "text/chat_encoding_internal.h"
#include "text/dsml.h"

namespace tidepool {

namespace {

constexpr std::string_view kEffortLine =
    "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n";
constexpr std::string_view kFormatHead =
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

/// Every control token that the format's own texts contain.
constexpr std::array<std::string_view, 16> kControlTokens = {
    dsml::kBeginOfSentence, dsml::kEndOfSentence,  dsml::kSystem,     dsml::kUser,
    dsml::kAssistant,       dsml::kLatestReminder, dsml::kThinkBegin, dsml::kThinkEnd,
    dsml::kImage,           dsml::kMark,           "<｜action｜>",    "<｜query｜>",
    "<｜authority｜>",      "<｜domain｜>",        "<｜title｜>",     "<｜read_url｜>",
};

void append_control(ChatPrompt& prompt, std::string_view token) {
  prompt.runs.push_back({prompt.text.size(), token.size(), true});
  prompt.text += token;
}

std::string_view think_token(bool is_thinking) {
  return is_thinking ? dsml::kThinkBegin : dsml::kThinkEnd;
}

/// Renders the messages of one conversation in order.
class Renderer {
 public:
  Renderer(const NormalConversation& conversation, const ChatEncodingOptions& options)
      : conversation_(conversation), options_(options) {}

  ChatPrompt render() {
    if (options_.adds_begin_of_sentence && conversation_.context_count == 0) {
      append_control(prompt_, dsml::kBeginOfSentence);
    }
    for (size_t i = conversation_.context_count; i < conversation_.messages.size(); ++i) {
      if (i == 0) render_head();
      render_message(i);
      render_transition(i);
    }
    return std::move(prompt_);
  }

 private:
  [[nodiscard]] bool is_thinking() const { return options_.mode == ThinkingMode::kThinking; }
  [[nodiscard]] const ChatMessage& message(size_t index) const { return conversation_.messages[index]; }

  void render_head() {
    if (is_thinking() || message(0).role == ChatRole::kSystem) append_control(prompt_, dsml::kSystem);
    if (is_thinking()) append_plain(prompt_, fmt::format(fmt::runtime(kEffortLine), options_.effort));
  }

  void render_message(size_t index) {
    switch (message(index).role) {
      case ChatRole::kSystem: render_system(index); return;
      case ChatRole::kUser: render_user(message(index)); return;
      case ChatRole::kAssistant: render_assistant(index); return;
      case ChatRole::kTool: return;  // folded into a user turn before
      case ChatRole::kLatestReminder:
        append_control(prompt_, dsml::kLatestReminder);
        append_content(prompt_, message(index).content);
        return;
    }
  }

  void render_system(size_t index) {
    const ChatMessage& system = message(index);
    if (index > 0) append_control(prompt_, dsml::kSystem);
    append_content(prompt_, system.content);
    if (!system.tools.empty()) append_tools(prompt_, system.tools);
    if (system.response_format) {
      append_plain(prompt_, kFormatHead);
      append_plain(prompt_, write_json(*system.response_format));
    }
  }

  void render_user(const ChatMessage& user) {
    append_control(prompt_, dsml::kUser);
    std::string_view separator;
    for (const ContentBlock& block : user.content) {
      append_plain(prompt_, separator);
      separator = "\n\n";
      switch (block.kind) {
        case ContentBlock::Kind::kText:
        case ContentBlock::Kind::kImage: append_content(prompt_, {block}); break;
        case ContentBlock::Kind::kOther: append_plain(prompt_, fmt::format("[Unsupported {}]", block.text)); break;
        case ContentBlock::Kind::kToolResult:
          append_plain(prompt_, "<tool_result>");
          append_content(prompt_, block.content);
          append_plain(prompt_, "</tool_result>");
          break;
      }
    }
  }

  void render_assistant(size_t index) {
    const ChatMessage& assistant = message(index);
    const bool follows_task = index > 0 && !message(index - 1).task.empty();
    const bool keeps = !conversation_.drops_reasoning || static_cast<ptrdiff_t>(index) > conversation_.last_turn;
    PromptTurn turn;
    turn.begin = prompt_.text.size();
    turn.has_reasoning = is_thinking() && !follows_task && keeps;
    if (turn.has_reasoning) {
      append_plain(prompt_, assistant.reasoning);
      append_control(prompt_, dsml::kThinkEnd);
    }
    turn.body = prompt_.text.size();
    append_content(prompt_, assistant.content);
    if (!assistant.tool_calls.empty()) append_calls(prompt_, assistant.tool_calls);
    turn.end = prompt_.text.size();
    prompt_.turns.push_back(turn);
    if (!assistant.is_open) append_control(prompt_, dsml::kEndOfSentence);
  }

  /// What leads from message `index` to an assistant turn, when one follows or is asked for.
  void render_transition(size_t index) {
    if (index + 1 < conversation_.messages.size()) {
      const ChatRole next = message(index + 1).role;
      if (next != ChatRole::kAssistant && next != ChatRole::kLatestReminder) return;
    }
    const ChatMessage& current = message(index);
    if (!current.task.empty()) {
      if (current.task == "action") {
        append_control(prompt_, dsml::kAssistant);
        append_control(prompt_, think_token(is_thinking()));
      }
      append_control(prompt_, fmt::format("<｜{}｜>", current.task));
      return;
    }
    const bool opens = current.role == ChatRole::kUser || (current.role == ChatRole::kSystem && index > 0);
    if (!opens) return;
    const bool keeps = !conversation_.drops_reasoning || static_cast<ptrdiff_t>(index) >= conversation_.last_turn;
    append_control(prompt_, dsml::kAssistant);
    append_control(prompt_, think_token(is_thinking() && keeps));
  }

  const NormalConversation& conversation_;
  const ChatEncodingOptions& options_;
  ChatPrompt prompt_;
};

}  // namespace

ChatPrompt encode_chat(const std::vector<ChatMessage>& messages, const ChatEncodingOptions& options) {
  if (options.effort < 1 || options.effort > 100) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("effort: {} is not in 1..100", options.effort));
  }
  return Renderer(normalise_conversation(messages, options), options).render();
}

void append_plain(ChatPrompt& prompt, std::string_view text) {
  if (text.empty()) return;
  if (prompt.runs.empty() || prompt.runs.back().is_control_token) prompt.runs.push_back({prompt.text.size(), 0, false});
  prompt.runs.back().bytes += text.size();
  prompt.text += text;
}

void append_template(ChatPrompt& prompt, std::string_view text) {
  while (!text.empty()) {
    size_t at = std::string_view::npos;
    std::string_view first;
    for (const std::string_view token : kControlTokens) {
      const size_t found = text.find(token);
      if (found < at) {
        at = found;
        first = token;
      }
    }
    append_plain(prompt, text.substr(0, at));
    if (first.empty()) return;
    append_control(prompt, first);
    text.remove_prefix(at + first.size());
  }
}

void append_content(ChatPrompt& prompt, const std::vector<ContentBlock>& content) {
  std::string_view separator;
  for (const ContentBlock& block : content) {
    if (block.kind != ContentBlock::Kind::kText && block.kind != ContentBlock::Kind::kImage) continue;
    append_plain(prompt, separator);
    separator = "\n\n";
    if (block.kind == ContentBlock::Kind::kText) {
      append_plain(prompt, block.text);
    } else {
      append_control(prompt, dsml::kImage);
      prompt.images.push_back(block.image);
    }
  }
}

}  // namespace tidepool
