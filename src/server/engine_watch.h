#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

namespace tidepool {

/// Tells a stuck engine from a busy one by whether its progress grows between two looks. Whoever looks regularly, as
/// health checks do, hears of it after the limit. Thread-safe.
class EngineWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit EngineWatch(std::chrono::milliseconds limit) : limit_(limit) {}

  /// Whether `progress` (ServiceStatus::progress) has not changed for longer than the limit, as far as was looked.
  [[nodiscard]] bool is_stuck(uint64_t progress, Time now) {
    const std::lock_guard lock(mutex_);
    if (progress != progress_) {
      progress_ = progress;
      since_ = now;
    }
    return now - *since_ > limit_;
  }

 private:
  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::optional<uint64_t> progress_;  ///< at the last look
  std::optional<Time> since_;         ///< when it was first seen
};

}  // namespace tidepool
