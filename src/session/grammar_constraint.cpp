#include "session/grammar_constraint.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace tidepool {

GrammarConstraint::GrammarConstraint(std::shared_ptr<const CompiledGrammar> grammar)
    : matcher_(std::move(grammar)), words_(matcher_.grammar().trie().word_count()) {}

void GrammarConstraint::mask(std::span<float> logits) {
  constexpr float kImpossible = -std::numeric_limits<float>::infinity();
  constexpr size_t kBits = 64;
  const size_t vocabulary = matcher_.grammar().trie().vocabulary_size();
  TIDEPOOL_CHECK(logits.size() >= vocabulary, "there is a logit for each token of the vocabulary");
  matcher_.fill_mask(words_);
  for (size_t i = 0; i < words_.size(); ++i) {
    const std::span<float> stretch = logits.subspan(i * kBits, std::min(kBits, vocabulary - i * kBits));
    if (words_[i] == 0) {
      std::ranges::fill(stretch, kImpossible);
    } else if (words_[i] != ~uint64_t{0}) {
      for (size_t bit = 0; bit < stretch.size(); ++bit) {
        if ((words_[i] >> bit & 1U) == 0) stretch[bit] = kImpossible;
      }
    }
  }
  std::ranges::fill(logits.subspan(vocabulary), kImpossible);
}

void GrammarConstraint::accept(int32_t id) {
  if (matcher_.accept(id)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("token {} of the output, {}, is not one the grammar allows there",
                          matcher_.accepted_count() + 1, id));
}

GrammarLibrary::GrammarLibrary(const Tokenizer& tokenizer, std::vector<int32_t> stop_ids)
    : cache_(std::make_shared<const TokenTrie>(TokenTrie::from_tokenizer(tokenizer)), std::move(stop_ids)) {}

std::shared_ptr<const CompiledGrammar> GrammarLibrary::grammar_for(const ChatRequest& request, OutputStart start,
                                                                   bool allows_parallel) {
  const std::optional<OutputGrammar> grammar = output_grammar_of(request, start, allows_parallel);
  if (!grammar) return nullptr;
  if (start == OutputStart::kReasoning && cache_.trie().tokens_of_byte(kThinkEndByte).empty()) {
    throw Error(ErrorCode::kUnsupported,
                "the tokenizer has no token </think>, so an answer behind reasoning cannot be "
                "held to a format; turn thinking off");
  }
  return cache_.get(*grammar);
}

}  // namespace tidepool
