#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidepool {

/// The pieces that the released tokenizer cuts texts into, and how often each occurs: all that a vocabulary is learnt
/// from. Pieces of digits are left out, so that no two digits become one token: a small vocabulary has some groups of
/// three and lacks others, and a sum in such tokens has no columns.
class PieceCounts {
 public:
  /// Counts the pieces of `text`, each `times`; bytes that are not UTF-8 count like any other.
  void add(std::string_view text, uint64_t times = 1);

  /// In ascending order of bytes, so that nothing depends on the order of `add`.
  [[nodiscard]] std::vector<std::pair<std::string, uint64_t>> sorted() const;
  [[nodiscard]] uint64_t text_bytes() const { return text_bytes_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view piece) const { return std::hash<std::string_view>{}(piece); }
  };
  std::unordered_map<std::string, uint64_t, Hash, std::equal_to<>> counts_;
  uint64_t text_bytes_ = 0;
};

struct BpeTrainerOptions {
  size_t token_count = 0;       ///< tokens wanted, the 256 single bytes among them
  size_t token_bytes_max = 16;  ///< no longer token: rules of dashes and dots would fill the vocabulary
};

/// Tokens and merges as byte pair encoding learns them. Tokens 0 to 255 are the single bytes.
struct BpeVocabulary {
  struct Merge {
    int32_t left = 0;
    int32_t right = 0;
    friend bool operator==(const Merge&, const Merge&) = default;
  };
  std::vector<std::string> tokens;
  std::vector<Merge> merges;  ///< in order of rank; the i-th makes token 256 + i
};

/// Byte pair encoding: again and again the pair of neighbours that occurs most often becomes a token; among equals the
/// one with the lower left, then the lower right token. A pair that spells a token there is already, or one that is too
/// long, is passed over. Counts of pairs are kept up to date per piece, so the time is that of the pieces which change.
/// Depends on nothing but its arguments.
/// Throws Error(kInvalidArgument) when no pair is left that occurs twice before there are `token_count` tokens.
[[nodiscard]] BpeVocabulary train_bpe(const std::vector<std::pair<std::string, uint64_t>>& pieces,
                                      const BpeTrainerOptions& options);

/// The control tokens of V4.1 that the chat format needs, in the order of their released ids; the first three have the
/// released ids 0, 1 and 2. Place-holders and the tokens of the older formats are left out: each would cost a row of
/// embedding and head.
[[nodiscard]] const std::vector<std::string_view>& pocket_control_tokens();

/// A `tokenizer.json` with the released splits: ids 0 to 2 are the first control tokens, then the vocabulary's tokens,
/// then the other control tokens.
[[nodiscard]] std::string write_tokenizer_json(const BpeVocabulary& vocabulary);

/// How many tokens train_bpe must learn for a tokenizer.json of `vocabulary_size` ids. Throws Error(kInvalidArgument)
/// when there is no room for the single bytes and the control tokens.
[[nodiscard]] size_t bpe_token_count(size_t vocabulary_size);

}  // namespace tidepool
