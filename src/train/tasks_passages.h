#pragma once

#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "train/corpus.h"
#include "train/random_stream.h"

namespace tidepool {

/// Draws passages of whole lines from a corpus: documents by their length, places in them at random. Corpus and
/// tokenizer must outlive it. Immutable.
class Passages {
 public:
  /// Throws Error(kInvalidArgument) when a split has no text.
  Passages(const Corpus& corpus, const Tokenizer& tokenizer);

  /// About `tokens` tokens of text, never more, of one document after the other as needed. Ends with a line feed, and
  /// may be empty when there is no room for a line, or no line that could be used was met.
  [[nodiscard]] std::string draw(Split split, size_t tokens, RandomStream& random) const;

 private:
  struct Part {
    std::vector<const CorpusDocument*> documents;
    std::vector<uint64_t> ends;  ///< bytes of the documents up to each, itself included
  };

  const Tokenizer& tokenizer_;
  Part parts_[2];
};

}  // namespace tidepool
