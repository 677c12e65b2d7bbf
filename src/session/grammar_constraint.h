#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "text/chat_request.h"
#include "text/grammar_matcher.h"
#include "text/tokenizer.h"

namespace tidepool {

/// Holds one output to a grammar while it is sampled. One per output; the compiled grammar is shared. One thread at a
/// time.
class GrammarConstraint final : public LogitsConstraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<const CompiledGrammar> grammar);

  /// logits [vocab], at least as many as the vocabulary has tokens. None is left when the grammar allows no token that
  /// the vocabulary has: only with vocabularies that lack single bytes.
  void mask(std::span<float> logits) override;
  /// Throws Error(kInvalidArgument) when the token is not one that mask() left.
  void accept(int32_t id) override;

  [[nodiscard]] bool can_rollback() const override { return true; }
  /// At most accepted_count().
  void rollback(size_t count) override { matcher_.rollback(count); }
  [[nodiscard]] size_t accepted_count() const { return matcher_.accepted_count(); }
  /// Whether the output may end here.
  [[nodiscard]] bool can_end() const { return matcher_.can_end(); }

 private:
  GrammarMatcher matcher_;
  std::vector<uint64_t> words_;  ///< scratch
};

/// The grammars of one loaded model. Thread-safe.
class GrammarLibrary {
 public:
  /// Builds the prefix trees of the vocabulary, which takes a fraction of a second. Keeps nothing of the tokenizer.
  /// `stop_ids` end an output.
  GrammarLibrary(const Tokenizer& tokenizer, std::vector<int32_t> stop_ids);

  /// What a request must be held to; nothing when it asks for nothing. `start`: where its output begins, as its prompt
  /// was prepared. Throws Error(kInvalidArgument) naming field, path and keyword of what cannot be honoured, and
  /// Error(kUnsupported) for reasoning when the tokenizer has no token that ends it.
  [[nodiscard]] std::shared_ptr<const CompiledGrammar> grammar_for(const ChatRequest& request, OutputStart start,
                                                                   bool allows_parallel);

 private:
  GrammarCache cache_;
};

}  // namespace tidepool
