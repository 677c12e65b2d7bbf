#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_encoding.h"
#include "text/json.h"

namespace tidepool {

/// Reads one message's fields and names the message in what it refuses.
class MessageReader {
 public:
  MessageReader(const Json& message, size_t index);

  /// Throws Error(kInvalidArgument): "messages[index].field: what".
  [[noreturn]] void fail(std::string_view field, std::string_view what) const;

  /// The member; null pointer when it is missing or null.
  [[nodiscard]] const Json* find(std::string_view field) const;
  /// A string member, empty when missing or null. Refuses other types.
  [[nodiscard]] std::string string_field(std::string_view field) const;
  /// A boolean member, false when missing or null. Refuses other types.
  [[nodiscard]] bool flag(std::string_view field) const;
  /// The `tool_calls` member.
  [[nodiscard]] std::vector<ToolCall> tool_calls() const;
  /// A list of content blocks, or one text block from a string.
  [[nodiscard]] std::vector<ContentBlock> content(std::string_view field, const Json& value) const;

 private:
  [[nodiscard]] ContentBlock block(const std::string& field, const Json& value) const;
  [[nodiscard]] Json image_record(const std::string& field, const Json& block) const;
  [[nodiscard]] ToolCall tool_call(const std::string& field, const Json& value) const;
  [[nodiscard]] std::string string_in(const std::string& field, const Json& object, std::string_view key) const;

  const Json& message_;
  size_t index_;
};

}  // namespace tidepool
