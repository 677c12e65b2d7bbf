#include "apps/timed_turn.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/output.h"
#include "apps/progress.h"

namespace tidepool {

TurnResult run_timed(Conversation& conversation, const TurnRequest& request,
                     const std::function<void(const CompletionEvent&)>& on_event, const std::stop_token& stop,
                     TurnTimes& times) {
  using Clock = std::chrono::steady_clock;
  Progress progress;
  const Clock::time_point start = Clock::now();
  Clock::time_point first_token = start;
  bool has_token = false;
  TurnListener listener;
  listener.on_prompt = [&](size_t done, size_t total) { progress.update("reading the prompt", done, total); };
  listener.on_token = [&](const SampledToken&) {
    if (has_token) return;
    has_token = true;
    first_token = Clock::now();
    progress.finish();
  };
  listener.on_event = on_event;
  const TurnResult result = conversation.run(request, listener, stop);
  progress.finish();
  const Clock::time_point end = Clock::now();
  times.prompt = (has_token ? first_token : end) - start;
  times.answer = has_token ? end - first_token : Clock::duration{0};
  return result;
}

void note_missing_control_tokens(const std::vector<std::string>& missing) {
  if (missing.empty()) return;
  Output(Output::kStandardError)
      .write(fmt::format("tidepool: note: this tokenizer lacks control tokens of the chat format; written as plain "
                         "text: {}\n",
                         fmt::join(missing, " ")));
}

}  // namespace tidepool
