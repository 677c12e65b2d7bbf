#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace tidepool {

/// English nouns, each once: what keys and values of recall tasks are. Few, as a model learns to look up fewer words
/// sooner (docs/pocket.md).
[[nodiscard]] std::span<const std::string_view> task_words();

/// The fewest that a list may be made of: with fewer, some keys have no value in a split.
inline constexpr size_t kTaskWordsMin = 16;

}  // namespace tidepool
