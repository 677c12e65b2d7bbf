#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/chat_encoding.h"
#include "text/tokenizer.h"

namespace tidepool {

/// A prompt as the engine takes it.
struct PromptIds {
  std::vector<int32_t> ids;
  /// Where among the ids the placeholders of images stand, one id each.
  std::vector<size_t> image_places;
  /// Control tokens of the template that this tokenizer does not have. Their text went in as ordinary text: the small
  /// models for tests then work, and whoever shows the answer should say so. Each once, in order of appearance.
  std::vector<std::string> missing_control_tokens;
};

/// Control tokens only where the template put them; everything else is plain text, whatever it looks like. `image_id`
/// is the id of image placeholders, from the config, as tokenizers spell it differently; needed when there are any.
[[nodiscard]] PromptIds encode_prompt(const Tokenizer& tokenizer, const ChatPrompt& prompt,
                                      std::optional<int64_t> image_id = std::nullopt);

}  // namespace tidepool
