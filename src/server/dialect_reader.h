#pragma once

#include <gtest/gtest.h>

#include <array>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "server/dialect_test_support.h"

/// Answers of the three chat dialects, streamed and not, in one form, for tests.
namespace tidepool::server_testing {

/// What a client has of an answer, whichever way it came.
struct Seen {
  std::string reasoning;
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  ///< names, and arguments as canonical JSON where they are
  std::string end;                                         ///< "stop", "length" or "calls"

  friend bool operator==(const Seen&, const Seen&) = default;
  // NOLINTNEXTLINE(*-identifier-naming): the name that GoogleTest calls
  friend void PrintTo(const Seen& seen, std::ostream* out) {
    *out << "reasoning '" << seen.reasoning << "' content '" << seen.content << "' end " << seen.end;
    for (const auto& [name, arguments] : seen.calls)
      *out << " call " << name << ' ' << arguments;
  }
};

enum class Dialect : uint8_t { kChat, kMessages, kResponses };
struct Way {
  Dialect dialect = Dialect::kChat;
  bool is_stream = false;
};
inline constexpr std::array<Way, 6> kWays = {{{Dialect::kChat, false},
                                              {Dialect::kChat, true},
                                              {Dialect::kMessages, false},
                                              {Dialect::kMessages, true},
                                              {Dialect::kResponses, false},
                                              {Dialect::kResponses, true}}};

inline std::string canonical(const std::string& arguments) {
  try {
    return write_json(parse_json(arguments));
  } catch (const Error&) {
    return arguments;
  }
}

inline std::string text_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

inline std::string end_of(std::string_view reason) {
  if (reason == "tool_calls" || reason == "tool_use") return "calls";
  return reason == "length" || reason == "max_tokens" || reason == "incomplete" ? "length" : "stop";
}

// --- chat completions

inline Seen read_chat(const Json& answer) {
  const Json& choice = at(answer, "choices", 0);
  const Json& message = at(choice, "message");
  Seen seen{text_of(message, "reasoning_content"), text_of(message, "content"), {}, {}};
  if (const Json* calls = message.find("tool_calls")) {
    for (const Json& call : calls->as_array())
      seen.calls.emplace_back(text_of(at(call, "function"), "name"), text_of(at(call, "function"), "arguments"));
  }
  seen.end = end_of(text_of(choice, "finish_reason"));
  return seen;
}

inline Seen read_chat_stream(const Response& response) {
  Seen seen;
  for (const Event& event : response.events()) {
    if (event.data == "[DONE]") continue;
    const Json chunk = parse_json(event.data);
    const Json& choice = at(chunk, "choices", 0);
    const Json& delta = at(choice, "delta");
    seen.reasoning += text_of(delta, "reasoning_content");
    seen.content += text_of(delta, "content");
    if (choice.find("finish_reason")->is_string()) seen.end = end_of(text_of(choice, "finish_reason"));
    const Json* calls = delta.find("tool_calls");
    if (calls == nullptr) continue;
    const Json& function = at(*calls, 0, "function");
    if (function.find("name") != nullptr) seen.calls.emplace_back(text_of(function, "name"), "");
    seen.calls.back().second += text_of(function, "arguments");
  }
  return seen;
}

// --- messages

inline Seen read_message(const Json& answer) {
  Seen seen;
  for (const Json& block : at(answer, "content").as_array()) {
    seen.reasoning += text_of(block, "thinking");
    seen.content += text_of(block, "text");
    if (text_of(block, "type") == "tool_use")
      seen.calls.emplace_back(text_of(block, "name"), write_json(at(block, "input")));
  }
  seen.end = end_of(text_of(answer, "stop_reason"));
  return seen;
}

inline Seen read_message_stream(const Response& response) {
  Seen seen;
  for (const Event& event : response.events()) {
    const Json data = parse_json(event.data);
    if (const Json* block = data.find("content_block"); block != nullptr && text_of(*block, "type") == "tool_use")
      seen.calls.emplace_back(text_of(*block, "name"), "");
    const Json* delta = data.find("delta");
    if (delta == nullptr) continue;
    seen.reasoning += text_of(*delta, "thinking");
    seen.content += text_of(*delta, "text");
    if (delta->find("partial_json") != nullptr) seen.calls.back().second += text_of(*delta, "partial_json");
    if (delta->find("stop_reason") != nullptr) seen.end = end_of(text_of(*delta, "stop_reason"));
  }
  return seen;
}

// --- responses

inline std::string response_end(const Json& response, const Seen& seen) {
  if (text_of(response, "status") == "completed" && !seen.calls.empty()) return "calls";
  return end_of(text_of(response, "status"));
}

inline Seen read_response(const Json& answer) {
  Seen seen;
  for (const Json& item : at(answer, "output").as_array()) {
    const std::string type = text_of(item, "type");
    if (type == "reasoning") seen.reasoning += text_of(at(item, "content", 0), "text");
    if (type == "message") seen.content += text_of(at(item, "content", 0), "text");
    if (type == "function_call") seen.calls.emplace_back(text_of(item, "name"), text_of(item, "arguments"));
  }
  seen.end = response_end(answer, seen);
  return seen;
}

inline Seen read_response_stream(const Response& response) {
  Seen seen;
  for (const Event& event : response.events()) {
    const Json data = parse_json(event.data);
    if (event.name == "response.reasoning_text.delta") seen.reasoning += text_of(data, "delta");
    if (event.name == "response.output_text.delta") seen.content += text_of(data, "delta");
    if (event.name == "response.output_item.added" && text_of(at(data, "item"), "type") == "function_call")
      seen.calls.emplace_back(text_of(at(data, "item"), "name"), "");
    if (event.name == "response.function_call_arguments.delta") seen.calls.back().second += text_of(data, "delta");
    if (event.name == "response.completed" || event.name == "response.incomplete")
      seen.end = response_end(at(data, "response"), seen);
  }
  return seen;
}

inline Seen read_answer(const Way& way, const Response& response) {
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_TRUE(response.is_complete);
  Seen seen;
  switch (way.dialect) {
    case Dialect::kChat: seen = way.is_stream ? read_chat_stream(response) : read_chat(response.json()); break;
    case Dialect::kMessages:
      seen = way.is_stream ? read_message_stream(response) : read_message(response.json());
      break;
    case Dialect::kResponses:
      seen = way.is_stream ? read_response_stream(response) : read_response(response.json());
      break;
  }
  for (auto& [name, arguments] : seen.calls)
    arguments = canonical(arguments);
  return seen;
}

}  // namespace tidepool::server_testing
