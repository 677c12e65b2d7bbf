#include "text/dsml.h"

#include <fmt/format.h>

#include "base/error.h"

namespace tidepool {

namespace {
constexpr std::string_view kSeparator = "::";
}  // namespace

ToolName split_tool_name(std::string_view text) {
  const size_t at = text.find(kSeparator);
  if (at == std::string_view::npos) return {"", std::string(text)};
  const std::string_view name = text.substr(at + kSeparator.size());
  if (name.find(kSeparator) != std::string_view::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("tool name \"{}\" has more than one \"::\"; write it as namespace::name", text));
  }
  return {std::string(text.substr(0, at)), std::string(name)};
}

std::string qualify_tool_name(std::string_view name, std::string_view space) {
  const ToolName parts = split_tool_name(name);
  if (space.empty()) return std::string(name);
  if (space.find(kSeparator) != std::string_view::npos) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("tool namespace \"{}\" contains \"::\"", space));
  }
  const bool is_qualified = parts.name.size() != name.size();
  if (is_qualified && parts.space != space) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("tool name \"{}\" contradicts its namespace \"{}\"; drop one of them", name, space));
  }
  return fmt::format("{}{}{}", space, kSeparator, parts.name);
}

}  // namespace tidepool
