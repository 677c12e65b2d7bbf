#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <random>
#include <string>

namespace tidepool {

/// Draws names that nobody else draws, and seeds. Thread-safe.
class IdSource {
 public:
  IdSource();

  /// So many letters and digits.
  [[nodiscard]] std::string id(size_t letters = 24);
  /// A number that JSON carries without loss.
  [[nodiscard]] uint64_t seed();

 private:
  std::mutex mutex_;  ///< guards random_
  std::mt19937_64 random_;
};

}  // namespace tidepool
