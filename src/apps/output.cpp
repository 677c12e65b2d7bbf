#include "apps/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace tidepool {
namespace {

/// The NO_COLOR convention: set and not empty means no styles.
bool allows_styles() {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && std::string_view(terminal) != "dumb";
}

}  // namespace

Output::Output(Stream stream)
    : descriptor_(stream), is_terminal_(::isatty(descriptor_) == 1), shows_styles_(is_terminal_ && allows_styles()) {}

void Output::write(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor_, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EPIPE) {
      throw OutputClosed();
    } else if (errno != EINTR) {
      throw OutputFailed(
          ErrorCode::kIo,
          fmt::format("standard {}: {}", descriptor_ == kStandardOutput ? "output" : "error", std::strerror(errno)));
    }
  }
}

void Output::write_foreign(std::string_view text) const {
  if (is_terminal_) {
    write(without_controls(text));
  } else {
    write(text);
  }
}

std::string Output::dimmed(std::string_view text) const {
  if (!shows_styles_ || text.empty()) return std::string(text);
  return fmt::format("\x1b[2m{}\x1b[0m", text);
}

std::string without_controls(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
    if (!is_control) result += c;
  }
  return result;
}

}  // namespace tidepool
