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
#include "kv/kv_cache.h"
#include "session/image_features.h"
#include "session/image_prompt.h"
#include "session/loaded_model.h"
#include "session/output_reader.h"
#include "text/chat_request.h"

namespace tidepool {

/// One turn: a whole prompt (not just what is new in it) and how to answer it.
struct TurnRequest {
  std::vector<int32_t> prompt;
  PromptImages images;  ///< of the prompt
  OutputFormat output;
  GenerationOptions generation;
  DraftOptions drafts;  ///< kAuto does without where the model was loaded without
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
  CacheReport cache;                 ///< what of the prompt was known
  size_t reasoning_tokens = 0;       ///< of the output
  DraftCounts drafts;
};

/// Runs turns one at a time: what the cache knows of a prompt is not read again, and what a turn reads and writes is
/// kept there. Model and cache must outlive it.
class Conversation {
 public:
  Conversation(const LoadedModel& model, KvCache& cache)
      : model_(model), cache_(cache), features_(std::make_shared<ImageFeatureCache>(model.model(), model.runtime())) {}

  /// Throws Error as Generator does, and Error(kResourceExhausted) naming --kv-ram when prompt and answer do not fit
  /// there; the conversation can go on afterwards.
  [[nodiscard]] TurnResult run(const TurnRequest& request, const TurnListener& listener = {},
                               const std::stop_token& stop = {});

 private:
  [[nodiscard]] KvCache::Reservation reserve(const SequenceState& state, const TurnRequest& request,
                                             int64_t context_max) const;
  [[nodiscard]] Generator::Drafting drafting(const TurnRequest& request);
  void generate(Generator& generator, const TurnRequest& request, const TurnListener& listener,
                const std::stop_token& stop, TurnResult& result);

  const LoadedModel& model_;
  KvCache& cache_;
  std::shared_ptr<ImageFeatureCache> features_;
  Arena arena_;
  std::optional<ModelDrafter> drafter_;  ///< from the first turn that drafts
  std::optional<DraftPlanner> planner_;  ///< by the step times of earlier turns too; from the first one that drafts
  std::optional<DraftPlanner> nominal_planner_;  ///< of a turn that must be repeatable
};

/// The turn that a chat request asks for. Appends the control tokens that the tokenizer lacks to `missing`.
[[nodiscard]] TurnRequest make_chat_turn(const LoadedModel& model, ChatRequest request,
                                         std::vector<std::string>& missing);

}  // namespace tidepool
