#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tidepool {

/// Notices that an output has become the same tokens over and over, as greedy outputs of long contexts may without end.
/// Exact repetition only: whoever counts, or fills a table with different numbers, does not repeat.
class RepetitionDetector {
 public:
  /// Of the part that comes again and again, in tokens: a paragraph.
  static constexpr size_t kPeriodMax = 512;
  /// How often it must have come in a row: three equal lines are no loop.
  static constexpr int64_t kRoundsMin = 8;

  /// Looks at the last token of `ids`, the output so far; called once for each token.
  void note_last(std::span<const int32_t> ids);
  /// How many tokens at the output's end only repeat what stood a period before them, once that is kRoundsMin periods;
  /// else 0.
  [[nodiscard]] int64_t repeated_tokens() const { return repeated_; }

 private:
  std::array<int64_t, kPeriodMax> runs_{};  ///< by period - 1: tokens at the end that equal those a period before
  int64_t repeated_ = 0;
};

}  // namespace tidepool
