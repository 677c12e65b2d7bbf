#pragma once

#include <cstdint>
#include <vector>

#include "text/chat_encoding.h"
#include "text/tokenizer.h"

namespace tidepool {

/// The ids of a rendered conversation: control tokens only where the template put them, all other text as plain text.
/// One id per image placeholder. Throws Error(kUnsupported) when the tokenizer lacks a control token of the prompt.
[[nodiscard]] std::vector<int32_t> prompt_ids(const Tokenizer& tokenizer, const ChatPrompt& prompt);

}  // namespace tidepool
