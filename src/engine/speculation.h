#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/continuation.h"
#include "model/model.h"

namespace tidepool {

/// Whether and how far ahead a sequence is drafted. Never changes what is written: with a temperature below
/// kGreedyTemperature not a token, otherwise not its distribution. (docs/drafts.md)
struct DraftOptions {
  enum class Mode : uint8_t {
    kOff,
    kAuto,   ///< as long as it pays, by measured step times and confidence
    kFixed,  ///< `length` tokens in every step, or as many as the draft head gives
  } mode = Mode::kOff;
  size_t length = 0;  ///< with kFixed; at least 1
  /// With kAuto: sampled output follows from the seed, as lengths are chosen by nominal costs instead of measured ones.
  bool is_repeatable = false;
};

/// "off", "auto", or how many tokens (1 to kDraftLengthMax) are drafted in every step. Throws Error(kInvalidArgument).
[[nodiscard]] DraftOptions parse_draft_options(std::string_view text);
inline constexpr size_t kDraftLengthMax = 64;

/// Tokens that are drafted in one step at most, for a model of this config.
[[nodiscard]] size_t drafts_max(const DraftOptions& options, const ModelConfig& config);

/// Tokens proposed behind the last one taken of a sequence, and what is needed to judge them.
class Drafts {
 public:
  Drafts() = default;
  Drafts(const Drafts&) = delete;  // tokens point into weights_
  Drafts& operator=(const Drafts&) = delete;
  Drafts(Drafts&&) noexcept = default;
  Drafts& operator=(Drafts&&) noexcept = default;
  ~Drafts() = default;

  /// One more token. `weights` is its distribution, [vocab], or empty when it was certain; `survival` the estimated
  /// probability that it and all before it are taken.
  void add(const DraftedToken& token, double survival);
  /// Room for the distribution of the next token, [vocab]; valid until clear(). At most `most` tokens are added.
  [[nodiscard]] std::span<float> weights_for_next(size_t vocab, size_t most);
  void shorten(size_t count);
  void clear();

  [[nodiscard]] size_t size() const { return tokens_.size(); }
  [[nodiscard]] const DraftedToken& token(size_t index) const { return tokens_[index]; }
  [[nodiscard]] std::span<const double> survival() const { return survival_; }

 private:
  std::vector<DraftedToken> tokens_;
  std::vector<double> survival_;
  std::vector<float> weights_;  ///< [tokens, vocab]
};

/// A sequence to draft for.
struct DraftingRequest {
  SequenceState* state = nullptr;  ///< is not changed
  const Continuation* continuation = nullptr;
  int32_t last_token = 0;  ///< taken and not read yet
  size_t most = 0;         ///< tokens to propose
  Drafts* drafts = nullptr;
};

/// Who proposes tokens.
class Drafter {
 public:
  Drafter() = default;
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;
  virtual ~Drafter() = default;

  /// Fills drafts of each request, which are empty, with at most `most` tokens; with none when there is nothing to go
  /// by. What a sequence is given does not depend on the others.
  virtual void propose(std::span<const DraftingRequest> requests) = 0;
};

/// The model's own draft head. What it borrows must outlive it.
class ModelDrafter final : public Drafter {
 public:
  /// `arena` is scratch, empty between calls. Throws Error(kUnsupported) when the model was made without drafts.
  ModelDrafter(const Model& model, const Runtime& runtime, Arena& arena);

  /// One pass of the head for all requests. Throws Error(kNumeric) when its logits are unusable.
  void propose(std::span<const DraftingRequest> requests) override;

 private:
  void draft_tokens(std::span<const DraftingRequest> requests, Span2d<float> logits, size_t ahead,
                    std::vector<std::optional<DraftedToken>>& tokens);

  const Model& model_;
  const Runtime& runtime_;
  Arena& arena_;
  std::vector<Sampler> samplers_;  ///< one for each thread of the pool
};

/// How many tokens may be drafted in a sequence's next step, whatever the options say: of a block, only as many as
/// leave a token to take behind the last of them, within the output's limits and what the sequence can take back.
[[nodiscard]] size_t drafts_limit(const Model& model, const SequenceState& state, const Continuation& continuation);

/// What became of drafts, by their place in the block (0: the first behind the token taken last).
struct DraftCounts {
  std::vector<int64_t> proposed;  ///< read by the model
  std::vector<int64_t> accepted;  ///< and taken
  int64_t rounds = 0;             ///< steps with drafts

  /// Of `proposed_count` drafts of a step the first `accepted_count` were taken.
  void note(size_t proposed_count, size_t accepted_count);
  void add(const DraftCounts& other);
  [[nodiscard]] int64_t accepted_total() const;
  [[nodiscard]] int64_t rejected_total() const;
};

/// A step of one sequence with drafts: the last token and the drafts are read in one go, and then the tokens that come
/// of it are taken one by one, each from its own row of logits. To be settled before anything else happens to the
/// sequence.
class Speculation {
 public:
  /// The rows that the sequence reads: `last_token`, then the drafts. Call before they are read.
  [[nodiscard]] std::vector<InputToken> begin(const SequenceState& state, int32_t last_token);
  [[nodiscard]] bool is_under_way() const { return begin_ >= 0; }

  [[nodiscard]] Drafts& drafts() { return drafts_; }
  [[nodiscard]] const Drafts& drafts() const { return drafts_; }
  /// Rows that were read.
  [[nodiscard]] size_t rows() const { return drafts_.size() + 1; }
  /// The row of the next token to take; as many drafts as that were taken.
  [[nodiscard]] size_t row() const { return row_; }

  /// Takes the next token; `logits` is its row. The speculation goes on when the token is the one that was drafted and
  /// the output did not end; otherwise it must be settled.
  [[nodiscard]] GenerationStep take(Continuation& continuation, Sampler& sampler, std::span<const float> logits);
  /// Whether the token taken last has been read already.
  [[nodiscard]] bool goes_on() const { return goes_on_; }

  /// Ends it: takes back from `state` what was read beyond the tokens taken, so that it holds all of them but the last,
  /// and returns how many drafts were taken. May come early, when whoever reads the output needs no more.
  size_t settle(SequenceState& state, DraftCounts& counts);

 private:
  Drafts drafts_;
  int64_t begin_ = -1;  ///< length of the sequence before the step
  size_t row_ = 0;
  int64_t taken_ = 0;
  bool goes_on_ = false;
};

}  // namespace tidepool
