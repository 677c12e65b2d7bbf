#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/arena.h"
#include "engine/generator.h"
#include "session/loaded_model.h"
#include "session/output_reader.h"
#include "text/chat_request.h"

namespace tidepool {

/// One turn: a whole prompt (not just what is new in it) and how to answer it.
struct TurnRequest {
  std::vector<int32_t> prompt;
  OutputFormat output;
  GenerationOptions generation;
};

/// Called while a turn runs, from the thread that runs it. Any may be empty.
struct TurnListener {
  /// New prompt tokens read so far, and how many there are.
  std::function<void(size_t tokens_done, size_t tokens_total)> on_prompt;
  std::function<void(const SampledToken& token)> on_token;
  std::function<void(const CompletionEvent& event)> on_event;
};

struct TurnResult {
  FinishReason finish = FinishReason::kStopToken;
  std::optional<size_t> stop_index;  ///< with kStopText: which stop string
  std::vector<SampledToken> tokens;  ///< of the output, a stop token included
  Completion completion;             ///< the output's text; empty for OutputFormat::Kind::kIds
  size_t prompt_tokens = 0;
  size_t reused_tokens = 0;     ///< of the prompt, that need not be read again
  size_t reasoning_tokens = 0;  ///< of the output
};

/// A conversation under way: keeps what the model has read, so that a turn whose prompt continues the last one reads
/// only what is new. One turn at a time; the model must outlive it.
class Conversation {
 public:
  explicit Conversation(const LoadedModel& model) : model_(model) {}

  /// Throws Error as Generator does; the conversation can go on afterwards.
  [[nodiscard]] TurnResult run(const TurnRequest& request, const TurnListener& listener = {},
                               const std::stop_token& stop = {});
  /// Forgets everything.
  void reset();

 private:
  [[nodiscard]] SequenceState take_state(std::span<const int32_t> prompt);
  void generate(Generator& generator, const TurnRequest& request, const TurnListener& listener,
                const std::stop_token& stop, TurnResult& result);

  const LoadedModel& model_;
  Arena arena_;
  std::optional<SequenceState> live_;          ///< as the last turn left it
  std::optional<SequenceState> prompt_state_;  ///< as it was behind the last turn's prompt
};

/// The turn that a chat request asks for. Appends the control tokens that the tokenizer lacks to `missing`.
[[nodiscard]] TurnRequest make_chat_turn(const LoadedModel& model, const ChatRequest& request,
                                         std::vector<std::string>& missing);

}  // namespace tidepool
