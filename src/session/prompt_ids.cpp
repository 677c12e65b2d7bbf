#include "session/prompt_ids.h"

#include <algorithm>
#include <string_view>

namespace tidepool {

PromptIds encode_prompt(const Tokenizer& tokenizer, const ChatPrompt& prompt) {
  PromptIds result;
  std::vector<TextRun> runs;
  runs.reserve(prompt.runs.size());
  for (const PromptRun& run : prompt.runs) {
    const std::string_view text = std::string_view(prompt.text).substr(run.begin, run.bytes);
    const bool is_missing = run.is_control_token && !tokenizer.find_added_token(text);
    runs.push_back({text, run.is_control_token && !is_missing});
    std::vector<std::string>& missing = result.missing_control_tokens;
    if (is_missing && std::ranges::find(missing, text) == missing.end()) missing.emplace_back(text);
  }
  result.ids = tokenizer.encode_runs(runs);
  return result;
}

}  // namespace tidepool
