#pragma once

#include <span>
#include <string_view>

namespace tidepool {

/// English nouns, each once: what keys and values of recall tasks are made of.
[[nodiscard]] std::span<const std::string_view> task_words();

}  // namespace tidepool
