#include "apps/progress.h"

#include <fmt/format.h>

#include <utility>

#include "apps/output.h"

namespace tidepool {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSilent{1000};
/// A bar moves smoothly enough; a log is not flooded.
constexpr milliseconds kTerminalPause{100};
constexpr milliseconds kLinePause{10'000};
constexpr size_t kBarWidth = 30;

}  // namespace

Progress::Progress(Write write, bool is_terminal, Clock clock)
    : write_(std::move(write)), is_terminal_(is_terminal), clock_(std::move(clock)) {}

Progress::Progress()
    : Progress([](std::string_view text) { Output(Output::kStandardError).write(text); },
               Output(Output::kStandardError).is_terminal()) {}

void Progress::update(std::string_view what, size_t done, size_t total) {
  const auto now = clock_();
  if (!is_running_) {
    is_running_ = true;
    start_ = now;
  }
  if (now - start_ < kSilent) return;
  if (is_shown_ && now - last_drawn_ < (is_terminal_ ? kTerminalPause : kLinePause)) return;
  last_drawn_ = now;
  draw(what, done, total);
  is_shown_ = true;
}

void Progress::draw(std::string_view what, size_t done, size_t total) {
  const size_t percent = done * 100 / total;
  if (!is_terminal_) {
    write_(fmt::format("tidepool: {}: {} of {} ({} %)\n", what, done, total, percent));
    return;
  }
  const size_t filled = done * kBarWidth / total;
  const std::string bar = std::string(filled, '#') + std::string(kBarWidth - filled, '.');
  write_(fmt::format("\r\x1b[K[{}] {:3} % {} ({} of {})", bar, percent, what, done, total));
}

void Progress::finish() {
  if (is_shown_ && is_terminal_) write_("\r\x1b[K");
  is_running_ = false;
  is_shown_ = false;
}

}  // namespace tidepool
