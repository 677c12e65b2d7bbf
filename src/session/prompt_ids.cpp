#include "session/prompt_ids.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "text/dsml.h"

namespace tidepool {
namespace {

/// Encodes what was collected of `runs`, which begin and end where ids do not depend on each other.
void flush(const Tokenizer& tokenizer, std::vector<TextRun>& runs, std::vector<int32_t>& ids) {
  const std::vector<int32_t> encoded = tokenizer.encode_runs(runs);
  ids.insert(ids.end(), encoded.begin(), encoded.end());
  runs.clear();
}

}  // namespace

PromptIds encode_prompt(const Tokenizer& tokenizer, const ChatPrompt& prompt, std::optional<int64_t> image_id) {
  PromptIds result;
  std::vector<TextRun> runs;
  runs.reserve(prompt.runs.size());
  for (const PromptRun& run : prompt.runs) {
    const std::string_view text = std::string_view(prompt.text).substr(run.begin, run.bytes);
    if (run.is_control_token && text == dsml::kImage) {
      TIDEPOOL_CHECK(image_id.has_value(), "images are refused where they come in when nothing can see them");
      flush(tokenizer, runs, result.ids);
      result.image_places.push_back(result.ids.size());
      result.ids.push_back(static_cast<int32_t>(*image_id));
      continue;
    }
    const bool is_missing = run.is_control_token && !tokenizer.find_added_token(text);
    runs.push_back({text, run.is_control_token && !is_missing});
    std::vector<std::string>& missing = result.missing_control_tokens;
    if (is_missing && std::ranges::find(missing, text) == missing.end()) missing.emplace_back(text);
  }
  flush(tokenizer, runs, result.ids);
  return result;
}

}  // namespace tidepool
