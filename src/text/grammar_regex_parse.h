#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tidepool {

struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;
};

/// The syntax tree of a regular expression.
struct RegexNode {
  enum class Kind : uint8_t { kEmpty, kClass, kConcat, kAlternatives, kRepeat, kStart, kEnd };
  static constexpr uint32_t kUnlimited = UINT32_MAX;

  Kind kind = Kind::kEmpty;
  std::vector<CodePointRange> ranges;  ///< kClass: ascending, without overlap
  std::vector<RegexNode> children;     ///< kConcat, kAlternatives; kRepeat: one
  uint32_t repeat_min = 0;             ///< kRepeat
  uint32_t repeat_max = 0;             ///< kRepeat
};

/// Longest pattern, deepest nesting of groups, and largest count of a repetition.
inline constexpr size_t kRegexBytesMax = 4096;
inline constexpr size_t kRegexDepthMax = 64;
inline constexpr uint32_t kRegexRepeatMax = 10'000;

/// The tree of a pattern that must match the whole text: anchors are taken out, and where they are missing any text may
/// come before or behind. Throws like CharDfa::from_pattern.
[[nodiscard]] RegexNode parse_regex(std::string_view pattern);

}  // namespace tidepool
