#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace tidepool {

/// Says how far a long piece of work is. A terminal gets a bar in one line that is redrawn, and taken away at the end;
/// anything else gets a line now and then. Work that takes less than a second says nothing.
class Progress {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;
  using Write = std::function<void(std::string_view)>;
  /// `write` goes to standard error, as a rule.
  Progress(Write write, bool is_terminal, Clock clock = &std::chrono::steady_clock::now);
  /// On standard error.
  Progress();

  /// `done` of `total` parts of `what` are over. total is above 0.
  void update(std::string_view what, size_t done, size_t total);
  /// The work is over; the next update begins another.
  void finish();

 private:
  void draw(std::string_view what, size_t done, size_t total);

  Write write_;
  bool is_terminal_;
  Clock clock_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_drawn_;
  bool is_running_ = false;
  bool is_shown_ = false;
};

}  // namespace tidepool
