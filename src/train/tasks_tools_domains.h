#pragma once

#include <span>
#include <string_view>

namespace tidepool {

/// One parameter of a tool of the tool-call dialogues. Its value is drawn for the slot of the same name.
struct ToolParameterSpec {
  std::string_view name;
  std::string_view type;  ///< "string", "integer" or "boolean"
  std::string_view description;
};

/// A tool, how people ask for it, what it answers and what is then said. In the texts `<x>` is a slot: a parameter of
/// that name, or a fact that only the tool knows.
struct ToolSpec {
  std::string_view domain;  ///< tools of one domain are offered together
  std::string_view name;
  std::string_view description;
  std::span<const ToolParameterSpec> parameters;  ///< all required, in the order of the call
  std::span<const std::string_view> requests;
  std::string_view result;  ///< JSON
  std::string_view reply;
};

/// Values that a slot can have.
struct SlotSpec {
  std::string_view name;
  std::span<const std::string_view> values;  ///< none: an integer
  int low = 0;                               ///< of the integer, included
  int high = 0;
  int step = 1;
};

/// Tools of one domain stand together.
[[nodiscard]] std::span<const ToolSpec> tool_specs();
/// Null when there is none of that name.
[[nodiscard]] const SlotSpec* find_slot(std::string_view name);

}  // namespace tidepool
