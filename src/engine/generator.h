#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

#include "engine/prefill.h"
#include "engine/sampler.h"
#include "model/model.h"

namespace tidepool {

/// Why a generation ended.
enum class FinishReason : uint8_t {
  kStopToken,    ///< the model wrote one of the stop ids
  kStopText,     ///< whoever reads the text met a stop string; the generator itself never says this
  kMaxTokens,    ///< as many tokens as were asked for
  kContextFull,  ///< prompt and output fill the context
  kCancelled,    ///< the caller asked to stop
};

/// As protocols and scripts spell it: "stop", "stop", "length", "length", "cancelled".
[[nodiscard]] std::string_view finish_reason_name(FinishReason reason);

/// How one sequence is continued, and when that ends.
struct GenerationOptions {
  SamplingParams sampling;
  /// Tokens that end the output; they are its last token.
  std::vector<int32_t> stop_ids;
  /// At least 1; nothing: as many as the context leaves.
  std::optional<int64_t> max_tokens;
  /// Stop ids are not taken before so many tokens were.
  int64_t min_tokens = 0;
  /// Prompt and output together; nothing: what the model was made for. At most that.
  std::optional<int64_t> context_max;
  /// How much of the prompt the decoder reads.
  Replay replay = Replay::kBounded;
  /// Prompt tokens per forward call.
  size_t chunk = 512;
  /// Borrowed; may be null.
  LogitsConstraint* constraint = nullptr;
};

/// What one call of next() gave.
struct GenerationStep {
  /// Nothing when the step was cancelled before it began.
  std::optional<SampledToken> token;
  /// Set on the last step.
  std::optional<FinishReason> finish;
};

/// Continues one sequence: a prompt, then a token at a time. Afterwards the sequence holds the prompt and every token
/// of the output but the last, which no forward pass has read yet. What it borrows must outlive it. One thread at a
/// time.
class Generator {
 public:
  /// Where a generator works; all borrowed.
  struct Engine {
    const Model& model;
    const Runtime& runtime;
    Arena& arena;  ///< scratch, empty between calls
  };

  /// `state` may hold tokens already: the prompt's beginning, which count for the repetition penalty.
  /// Throws Error(kInvalidArgument) naming the option that is out of range.
  Generator(const Engine& engine, SequenceState& state, GenerationOptions options);

  /// tokens_done of tokens_total prompt tokens were read.
  using Progress = std::function<void(size_t tokens_done, size_t tokens_total)>;
  /// Reads the prompt (at least one token, each in the vocabulary). Call once, first. Returns false when `stop` was
  /// requested: the sequence then holds a part of the prompt. Throws Error(kInvalidArgument) naming both lengths,
  /// before any work, when no token of output would fit behind the prompt.
  [[nodiscard]] bool read_prompt(std::span<const InputToken> prompt, const Progress& progress = {},
                                 const std::stop_token& stop = {});

  /// The next token of the output; not to be called after a step that finished. A request to stop is seen before the
  /// step, so it takes at most one. Throws Error(kNumeric) with the position when the model's logits are unusable.
  [[nodiscard]] GenerationStep next(const std::stop_token& stop = {});

  /// Tokens of output so far.
  [[nodiscard]] int64_t generated_count() const { return generated_count_; }
  [[nodiscard]] int64_t context_max() const { return context_max_; }

 private:
  void check_options() const;
  void check_prompt(std::span<const InputToken> prompt) const;
  void run_last_token();
  [[nodiscard]] SampledToken sample();
  [[nodiscard]] std::optional<FinishReason> finish_after(int32_t id) const;

  Engine engine_;
  SequenceState& state_;
  GenerationOptions options_;
  int64_t context_max_;
  Sampler sampler_;
  std::optional<TokenHistory> history_;  ///< with penalties only
  std::vector<float> logits_;            ///< [vocab], for the next token
  std::optional<int32_t> last_token_;    ///< taken and not yet run
  int64_t generated_count_ = 0;
};

}  // namespace tidepool
