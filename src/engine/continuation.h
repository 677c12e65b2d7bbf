#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/prefill.h"
#include "engine/sampler.h"
#include "formats/config.h"
#include "kv/sequence_state.h"

namespace tidepool {

/// Why a generation ended.
enum class FinishReason : uint8_t {
  kStopToken,    ///< the model wrote one of the stop ids
  kStopText,     ///< whoever reads the text needs no more of it, a stop string say; the engine never finds this itself
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
  /// Unless empty, token i of the output is forced[i % size], whatever the model's logits say: recorded outputs.
  std::vector<int32_t> forced{};
};

/// Throws Error(kInvalidArgument) naming the option that is out of range for the model.
void check_generation_options(const ModelConfig& config, const GenerationOptions& options);

/// Says that a prompt of `length` tokens leaves no room in a context of `context_max`, and what to do.
[[nodiscard]] std::string no_room_message(const ModelConfig& config, int64_t length, int64_t context_max);

/// What one step of a generation gave.
struct GenerationStep {
  /// Nothing when the step was cancelled before it began.
  std::optional<SampledToken> token;
  /// Set on the last step.
  std::optional<FinishReason> finish;
};

/// One output as it grows: turns the logits behind each position into the next token, and says when it is over. What a
/// step gives depends on the options and the tokens before it alone. One thread at a time.
class Continuation {
 public:
  /// Throws Error as check_generation_options.
  Continuation(const ModelConfig& config, GenerationOptions options);

  /// Tokens before the output, for the repetition penalty.
  void add_prompt(std::span<const InputToken> tokens);
  /// The next token, from the logits of the sequence's last position; `length` is how many positions there are. Not to
  /// be called after a step that finished. Throws Error(kNumeric) with the position when the logits are unusable.
  /// `drafted` may propose the token, without influence on its distribution.
  [[nodiscard]] GenerationStep take(Sampler& sampler, std::span<const float> logits, int64_t length,
                                    const DraftedToken* drafted = nullptr);
  /// Proposes the token `ahead` behind the next one from a draft head's logits, as take() would choose it behind those
  /// of follow_draft(); see Sampler::draft. Penalties do not see these.
  [[nodiscard]] std::optional<DraftedToken> draft(Sampler& sampler, std::span<const float> logits, size_t ahead,
                                                  std::span<float> weights) const;
  /// What is drafted next comes behind this token: a constraint that can take it back accepts it.
  void follow_draft(int32_t id) const;
  /// Takes the `count` tokens back that were followed: all of them, before anything is taken.
  void end_drafts(size_t count) const;

  /// Tokens of output so far.
  [[nodiscard]] int64_t count() const { return count_; }
  [[nodiscard]] int64_t context_max() const { return context_max_; }
  [[nodiscard]] const GenerationOptions& options() const { return options_; }

 private:
  /// The constraint, if drafts can be held to it.
  [[nodiscard]] LogitsConstraint* draft_constraint() const;
  [[nodiscard]] SampledToken sample(Sampler& sampler, std::span<const float> logits, int64_t length,
                                    const DraftedToken* drafted) const;
  [[nodiscard]] SampleRequest request_at(std::span<const float> logits, int64_t index) const;
  [[nodiscard]] std::optional<FinishReason> finish_after(int32_t id, int64_t length) const;

  GenerationOptions options_;
  int64_t context_max_;
  std::optional<TokenHistory> history_;  ///< with penalties only
  int64_t count_ = 0;
};

}  // namespace tidepool
