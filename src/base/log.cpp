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

/// Length of the character that begins with `lead`; 1 for anything that begins none.
size_t utf8_bytes(unsigned char lead) {
  if (lead >= 0xf0) return 4;
  if (lead >= 0xe0) return 3;
  return lead >= 0xc0 ? 2 : 1;
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

std::string printable(std::string_view text, size_t bytes_max) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters too, c2 80 to c2 9f in UTF-8.
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool is_c1 = byte == 0xc2 && next >= 0x80 && next < 0xa0;
    if (result.size() + utf8_bytes(byte) > bytes_max) return result + "...";
    if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else if (is_c1) {
      result += fmt::format("\\xc2\\x{:02x}", next);
      ++i;
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace tidepool
