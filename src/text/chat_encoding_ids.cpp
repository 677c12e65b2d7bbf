#include "text/chat_encoding_ids.h"

#include <string_view>

#include "text/dsml.h"

namespace tidepool {

std::vector<int32_t> prompt_ids(const Tokenizer& tokenizer, const ChatPrompt& prompt) {
  // Some copies of the released tokenizer spell the placeholder this way.
  constexpr std::string_view kOtherImageSpelling = "<｜image｜>";
  const bool has_image_token = tokenizer.find_added_token(dsml::kImage).has_value();
  std::vector<TextRun> runs;
  runs.reserve(prompt.runs.size());
  for (const PromptRun& run : prompt.runs) {
    std::string_view text = std::string_view(prompt.text).substr(run.begin, run.bytes);
    if (run.is_control_token && !has_image_token && text == dsml::kImage) text = kOtherImageSpelling;
    runs.push_back({text, run.is_control_token});
  }
  return tokenizer.encode_runs(runs);
}

}  // namespace tidepool
