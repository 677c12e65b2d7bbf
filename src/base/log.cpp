#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <limits>
#include <memory>

#include "base/check.h"

namespace tidepool {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: return spdlog::level::off;
  }
  TIDEPOOL_CHECK(false, "not a log level");
}

/// The one logger of the process: the house style's exception to "no globals".
spdlog::logger& logger() {
  static const std::unique_ptr<spdlog::logger> instance = [] {
    auto made = std::make_unique<spdlog::logger>("tidepool", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
    made->set_level(spdlog::level::off);
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  logger().set_level(spdlog_level(level));
}

bool is_logged(LogLevel level) {
  return level != LogLevel::kOff && logger().should_log(spdlog_level(level));
}

void log_message(LogLevel level, std::string_view message) {
  if (!is_logged(level)) return;
  const std::string line = printable(message, std::numeric_limits<size_t>::max());
  logger().log(spdlog_level(level), spdlog::string_view_t(line.data(), line.size()));
}

std::string printable(std::string_view text, size_t chars_max) {
  std::string result;
  for (const char c : text) {
    if (result.size() >= chars_max) return result + "...";
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace tidepool
