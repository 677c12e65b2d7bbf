#pragma once

#include <span>
#include <string_view>

namespace tidepool {

/// English nouns, each once: what keys and values of recall tasks are. Few, as a model learns to look up fewer words
/// sooner (docs/pocket.md).
[[nodiscard]] std::span<const std::string_view> task_words();

}  // namespace tidepool
