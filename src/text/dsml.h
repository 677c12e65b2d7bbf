#pragma once

#include <string>
#include <string_view>

namespace tidepool {

/// The control tokens of the prompt format and the pieces of its tool-call markup, as text. Which id a control token
/// has is the tokenizer's business. The bars are U+FF5C, the blocks in the sentence tokens U+2581.
namespace dsml {

inline constexpr std::string_view kBeginOfSentence = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEndOfSentence = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kSystem = "<｜System｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kLatestReminder = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkBegin = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";
inline constexpr std::string_view kImage = "<｜deepseek_image｜>";
inline constexpr std::string_view kBar = "｜";
/// Inside the tags of the call markup; '<', '</', the names and '>' around it are ordinary text.
inline constexpr std::string_view kMark = "｜DSML｜";

/// Begins every opening tag, and so the calls block.
inline constexpr std::string_view kOpen = "<｜DSML｜";
/// Begins every closing tag.
inline constexpr std::string_view kClose = "</｜DSML｜";
inline constexpr std::string_view kCallsOpening = "\n\n<｜DSML｜ calls>\n";
inline constexpr std::string_view kCallsEnd = "</｜DSML｜ calls>";
/// How the previous model generation closes its block.
inline constexpr std::string_view kCallsEndV4 = "</｜DSML｜tool_calls>";

}  // namespace dsml

/// A tool name and the namespace it lives in (empty: none); written together as `space::name`.
struct ToolName {
  std::string space;
  std::string name;
};

/// Splits `text` at its only "::". Throws Error(kInvalidArgument) when there is more than one.
[[nodiscard]] ToolName split_tool_name(std::string_view text);

/// The name as the prompt writes it, from a name that may itself be qualified and a namespace given beside it (empty:
/// none). Throws Error(kInvalidArgument) when they contradict each other or contain "::" too often.
[[nodiscard]] std::string qualify_tool_name(std::string_view name, std::string_view space);

}  // namespace tidepool
