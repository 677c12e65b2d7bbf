#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "engine/continuation.h"
#include "engine/draft_profile.h"
#include "engine/speculation.h"
#include "model/model.h"

namespace tidepool {

/// Continues one sequence: a prompt, then a token at a time. Afterwards the sequence holds the prompt and every token
/// of the output but the last, which no forward pass has read yet; with drafts, after end(). What it borrows must
/// outlive it. One thread at a time.
class Generator {
 public:
  /// Where a generator works; all borrowed.
  struct Engine {
    const Model& model;
    const Runtime& runtime;
    Arena& arena;  ///< scratch, empty between calls
  };

  /// How it drafts; all borrowed. Greedy output is the same with any drafts or none; sampled output has the same
  /// distribution.
  struct Drafting {
    Drafter* drafter = nullptr;       ///< null: no drafts
    DraftPlanner* planner = nullptr;  ///< null: `length` drafts in every step
    size_t length = 0;
    DraftClock clock{};  ///< for the planner; empty: steady time
  };

  /// `state` may hold tokens already: the prompt's beginning, which count for the repetition penalty.
  /// Throws Error(kInvalidArgument) naming the option that is out of range.
  Generator(const Engine& engine, SequenceState& state, GenerationOptions options);
  Generator(const Engine& engine, SequenceState& state, GenerationOptions options, const Drafting& drafting);

  /// tokens_done of tokens_total prompt tokens were read.
  using Progress = std::function<void(size_t tokens_done, size_t tokens_total)>;
  /// Reads the prompt (at least one token, each in the vocabulary). Call once, first. Returns false when `stop` was
  /// requested: the sequence then holds a part of the prompt. Throws Error(kInvalidArgument) naming both lengths,
  /// before any work, when no token of output would fit behind the prompt.
  /// `images` has the embeddings of its image positions; null where there are none.
  [[nodiscard]] bool read_prompt(std::span<const InputToken> prompt, const Progress& progress = {},
                                 const std::stop_token& stop = {}, ImageRowSource* images = nullptr);

  /// The next token of the output; not to be called after a step that finished. A request to stop is seen before the
  /// step, so it takes at most one. Throws Error(kNumeric) with the position when the model's logits are unusable.
  [[nodiscard]] GenerationStep next(const std::stop_token& stop = {});

  /// Takes back what was read ahead of the tokens that next() gave. Needed with drafts only, and only where the output
  /// is cut short of a step that finished; next() may go on afterwards.
  void end();

  /// What became of the drafts of all steps that are over.
  [[nodiscard]] const DraftCounts& draft_counts() const { return draft_counts_; }
  /// Tokens of output so far.
  [[nodiscard]] int64_t generated_count() const { return continuation_.count(); }
  [[nodiscard]] int64_t context_max() const { return continuation_.context_max(); }

 private:
  void check_prompt(std::span<const InputToken> prompt) const;
  void propose();
  void read_rows();
  void settle();

  Engine engine_;
  SequenceState& state_;
  Continuation continuation_;
  Sampler sampler_;
  std::vector<float> logits_;          ///< [rows, vocab]: for the next token, and behind each draft
  std::optional<int32_t> last_token_;  ///< taken last

  Drafting drafting_;
  Speculation speculation_;
  DraftPlanner::Step step_;       ///< the one under way
  std::vector<double> survival_;  ///< of its drafts
  DraftCounts draft_counts_;
};

}  // namespace tidepool
