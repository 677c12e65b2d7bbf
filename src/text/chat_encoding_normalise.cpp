#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "text/chat_encoding_internal.h"
#include "text/dsml.h"

namespace tidepool {

namespace {

constexpr std::array<std::string_view, 6> kTasks = {"action", "query", "authority", "domain", "title", "read_url"};

void refuse_placeholder(std::string_view text, size_t index, std::string_view field) {
  if (text.find(dsml::kImage) == std::string_view::npos) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("messages[{}].{}: contains the text {}, which stands for an image; send an image block "
                          "instead, or write it differently",
                          index, field, dsml::kImage));
}

void check_content(const std::vector<ContentBlock>& content, size_t index) {
  for (const ContentBlock& block : content) {
    refuse_placeholder(block.text, index, "content");
    check_content(block.content, index);
  }
}

/// Names are qualified again when they are written; here the refusal can say where the call is.
void check_calls(const std::vector<ToolCall>& calls, size_t index) {
  for (size_t i = 0; i < calls.size(); ++i) {
    try {
      (void)qualify_tool_name(calls[i].name, calls[i].space);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("messages[{}].tool_calls[{}]: {}", index, i, error.what()));
    }
  }
}

ContentBlock result_block(const ChatMessage& tool_message) {
  ContentBlock block;
  block.kind = ContentBlock::Kind::kToolResult;
  block.tool_use_id = tool_message.tool_call_id;
  block.content = tool_message.content;
  return block;
}

/// Tool messages become results inside user turns, and user turns that follow each other become one.
std::vector<ChatMessage> fold_user_turns(const std::vector<ChatMessage>& messages) {
  std::vector<ChatMessage> folded;
  for (const ChatMessage& message : messages) {
    const bool follows_user = !folded.empty() && folded.back().role == ChatRole::kUser;
    if (message.role == ChatRole::kTool) {
      if (!follows_user) {
        folded.emplace_back();
        folded.back().role = ChatRole::kUser;
      }
      folded.back().content.push_back(result_block(message));
    } else if (message.role == ChatRole::kUser && follows_user && folded.back().task.empty()) {
      ChatMessage& turn = folded.back();
      turn.content.insert(turn.content.end(), message.content.begin(), message.content.end());
      turn.task = message.task;
    } else {
      folded.push_back(message);
    }
  }
  return folded;
}

using CallOrder = std::unordered_map<std::string, size_t>;

CallOrder call_order(const std::vector<ToolCall>& calls) {
  CallOrder order;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].id.empty()) order[calls[i].id] = i;
  }
  return order;
}

/// Sorts the results of one turn among the places that results hold; other blocks stay where they are.
void sort_results(std::vector<ContentBlock>& content, const CallOrder& order) {
  std::vector<size_t> places;
  std::vector<ContentBlock> results;
  for (size_t i = 0; i < content.size(); ++i) {
    if (content[i].kind != ContentBlock::Kind::kToolResult) continue;
    places.push_back(i);
    results.push_back(std::move(content[i]));
  }
  const auto rank = [&order](const ContentBlock& block) {
    const auto found = order.find(block.tool_use_id);
    return found == order.end() ? size_t{0} : found->second;
  };
  std::stable_sort(results.begin(), results.end(),
                   [&rank](const ContentBlock& a, const ContentBlock& b) { return rank(a) < rank(b); });
  for (size_t i = 0; i < places.size(); ++i)
    content[places[i]] = std::move(results[i]);
}

void sort_all_results(std::vector<ChatMessage>& messages) {
  CallOrder order;
  for (ChatMessage& message : messages) {
    if (message.role == ChatRole::kAssistant && !message.tool_calls.empty()) order = call_order(message.tool_calls);
    if (message.role == ChatRole::kUser && !order.empty()) sort_results(message.content, order);
  }
}

}  // namespace

void check_chat_messages(const std::vector<ChatMessage>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    check_content(messages[i].content, i);
    refuse_placeholder(messages[i].reasoning, i, "reasoning_content");
    check_calls(messages[i].tool_calls, i);
    const std::string& task = messages[i].task;
    if (!task.empty() && std::find(kTasks.begin(), kTasks.end(), task) == kTasks.end()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("messages[{}].task: \"{}\" is none of {}", i, task, fmt::join(kTasks, ", ")));
    }
  }
}

NormalConversation normalise_conversation(const std::vector<ChatMessage>& messages,
                                          const ChatEncodingOptions& options) {
  check_chat_messages(options.context);
  check_chat_messages(messages);
  NormalConversation result;
  result.messages = fold_user_turns(options.context);
  result.context_count = result.messages.size();
  std::vector<ChatMessage> rendered = fold_user_turns(messages);
  std::move(rendered.begin(), rendered.end(), std::back_inserter(result.messages));
  sort_all_results(result.messages);
  result.drops_reasoning = options.drops_reasoning;
  for (size_t i = 0; i < result.messages.size(); ++i) {
    const ChatMessage& message = result.messages[i];
    if (!message.tools.empty()) result.drops_reasoning = false;
    const bool begins_turn = message.role == ChatRole::kUser || (message.role == ChatRole::kSystem && i > 0);
    if (begins_turn) result.last_turn = static_cast<ptrdiff_t>(i);
  }
  return result;
}

}  // namespace tidepool
