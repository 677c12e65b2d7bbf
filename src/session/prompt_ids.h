#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/chat_encoding.h"
#include "text/tokenizer.h"

namespace tidepool {

/// A prompt as the engine takes it.
struct PromptIds {
  std::vector<int32_t> ids;
  /// Control tokens of the template that this tokenizer does not have. Their text went in as ordinary text: the small
  /// models for tests then work, and whoever shows the answer should say so. Each once, in order of appearance.
  std::vector<std::string> missing_control_tokens;
};

/// Control tokens only where the template put them; everything else is plain text, whatever it looks like.
[[nodiscard]] PromptIds encode_prompt(const Tokenizer& tokenizer, const ChatPrompt& prompt);

}  // namespace tidepool
