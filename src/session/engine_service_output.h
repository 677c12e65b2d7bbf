#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "session/kept_turns.h"
#include "session/output_reader.h"
#include "session/repetition_detector.h"
#include "session/service.h"

namespace tidepool {

/// What the outputs of one request have in common.
struct ServiceOutputPlan {
  const Tokenizer* tokenizer = nullptr;  ///< may be null when `format` is kIds
  OutputFormat format;
  std::vector<int32_t> stop_ids;  ///< the client's own
  bool includes_stop_text = false;
  bool allows_parallel_calls = true;
  /// An output ends, as at its token limit, when so many tokens at its end only repeat themselves; 0: it never does.
  int64_t repetition_limit = 0;
  std::optional<int32_t> reasoning_end_id;  ///< the token that ends the reasoning, if the tokenizer has one
  std::vector<int32_t> forced_opening;      ///< ids of the prompt's end that belong to the output
  uint64_t prompt_fingerprint = 0;          ///< of the prompt without them
};

/// One choice of a request as it is written: from tokens to events, and in the end to a turn that can be kept.
class ServiceOutput {
 public:
  /// `plan` must outlive it.
  explicit ServiceOutput(const ServiceOutputPlan& plan);

  /// What the next token means; `finish` when the engine ends the output with it.
  [[nodiscard]] std::vector<CompletionEvent> feed(int32_t id, std::optional<FinishReason> finish);
  /// Nothing more is wanted: a stop string was met, or all calls are written that may be.
  [[nodiscard]] bool is_done() const { return is_done_; }
  /// The output is over: what was held back.
  [[nodiscard]] std::vector<CompletionEvent> finish();

  /// Tokens at the end that only repeat the same part, once these are so many that no reader wants more of them; else
  /// 0.
  [[nodiscard]] int64_t repeated_tokens() const;

  /// After finish().
  [[nodiscard]] ServiceFinish result(const SequenceListener::ChoiceEnd& end) const;
  /// After finish(): the turn and its canonical text; nothing when it cannot be sent back to the model.
  struct Kept {
    std::string text;
    KeptTurn turn;
  };
  [[nodiscard]] std::optional<Kept> kept_turn() const;

 private:
  void note(std::vector<CompletionEvent>& events);
  void add_stop_text(std::vector<CompletionEvent>& events) const;
  void end_after_first_call(std::vector<CompletionEvent>& events);

  const ServiceOutputPlan& plan_;
  OutputReader reader_;
  std::vector<int32_t> ids_;  ///< without the token that ended it
  std::optional<int32_t> stop_id_;
  std::optional<size_t> body_;  ///< where the reasoning ended among the ids
  int64_t reasoning_tokens_ = 0;
  Completion completion_;
  RepetitionDetector repetition_;
  bool has_reached_repetition_limit_ = false;
  bool is_done_ = false;
  bool is_over_ = false;       ///< nothing is to be read any more
  bool ends_in_call_ = false;  ///< stopped behind the first call, before the block was closed
};

}  // namespace tidepool
