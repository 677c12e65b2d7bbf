#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

/// What the program has to say to its operator, on stderr, one line each. Silent until set_log_level is called (so
/// tests and library users hear nothing). Thread-safe.
namespace tidepool {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void set_log_level(LogLevel level);
[[nodiscard]] bool is_logged(LogLevel level);
/// Writes `message` as it is; control characters in it are shown as \xNN, so text from outside cannot forge lines or
/// drive a terminal.
void log_message(LogLevel level, std::string_view message);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (is_logged(LogLevel::kDebug)) log_message(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (is_logged(LogLevel::kInfo)) log_message(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (is_logged(LogLevel::kWarning)) log_message(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  if (is_logged(LogLevel::kError)) log_message(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

/// `text` with control characters as \xNN, cut (with "...") before the character that would pass `bytes_max`: for names
/// from outside in messages. Other UTF-8 is left as it is.
[[nodiscard]] std::string printable(std::string_view text, size_t bytes_max = 200);

}  // namespace tidepool
