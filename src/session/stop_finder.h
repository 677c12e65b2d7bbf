#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool {

/// Looks for stop strings in text that comes in pieces, whole or split anywhere. Text that may still become a stop
/// string is held back; the match that is complete first wins, the longest one when several end together.
class StopFinder {
 public:
  /// Throws Error(kInvalidArgument) when one is empty.
  explicit StopFinder(std::vector<std::string> stops);

  /// Reads the next piece; returns the text that certainly stands before any stop string. Nothing once one was met.
  [[nodiscard]] std::string feed(std::string_view piece);
  /// The text is over: what was held back.
  [[nodiscard]] std::string finish();
  /// The stop string that was met, as an index into `stops`.
  [[nodiscard]] std::optional<size_t> met() const { return met_; }

 private:
  [[nodiscard]] std::optional<size_t> stop_ending_at(size_t end) const;
  [[nodiscard]] size_t held_suffix_bytes() const;

  std::vector<std::string> stops_;
  std::string held_;
  std::optional<size_t> met_;
};

}  // namespace tidepool
