#pragma once

#include <functional>
#include <thread>

namespace tidepool {

/// The shell's convention for a program ended by Ctrl-C.
inline constexpr int kExitInterrupted = 130;

/// Turns Ctrl-C (SIGINT) into a call, on a thread of its own, instead of the end of the program. Make it before any
/// other thread is started: threads inherit that the signal is not theirs. Afterwards the signal has its usual effect
/// again.
class Interrupts {
 public:
  /// `on_interrupt` must not throw.
  explicit Interrupts(std::function<void()> on_interrupt);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  void listen() const;

  std::function<void()> on_interrupt_;
  int signals_ = -1;  ///< a descriptor that gives the signals
  int end_ = -1;      ///< becomes readable when the thread shall end
  std::jthread thread_;
};

}  // namespace tidepool
