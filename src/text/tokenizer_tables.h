#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"
#include "text/pretokenizer.h"

namespace tidepool {

/// The most ids a tokenizer may have: eight times the released 129,280, a bound for tables that are indexed by id.
inline constexpr int64_t kTokenIdsMax = 1 << 20;
/// The longest added token. It bounds the work per byte of finding them; the released ones are up to 40 bytes long.
inline constexpr size_t kAddedTokenBytesMax = 256;

/// Finds added tokens in text: leftmost, then longest. Immutable after `finish`.
class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin = 0;
    size_t bytes = 0;
    int32_t id = 0;
  };

  /// `content` is neither empty nor longer than kAddedTokenBytesMax, nor added twice.
  void add(std::string_view content, int32_t id);
  /// Call once, after the last `add`.
  void finish();

  /// The first match that begins at `from` or later.
  [[nodiscard]] std::optional<Match> find(std::string_view text, size_t from) const;
  /// The id of the added token that is `content`.
  [[nodiscard]] std::optional<int32_t> find_exactly(std::string_view content) const;

 private:
  struct Entry {
    std::string content;
    int32_t id = 0;
  };

  [[nodiscard]] const Entry* longest_at(std::string_view text, size_t begin) const;

  std::vector<Entry> entries_;  ///< in ascending order of content
  std::string first_bytes_;     ///< those that a content begins with, each once
};

/// What a checked `tokenizer.json` says, in the form that encoding and decoding use.
struct TokenizerTables {
  enum class Kind : uint8_t {
    kNone,     ///< no token has this id
    kBytes,    ///< made by byte pair encoding
    kLiteral,  ///< in the vocabulary, but not written in byte letters: no text encodes to it
    kAdded,
  };
  struct Token {
    std::string bytes;  ///< what it decodes to
    Kind kind = Kind::kNone;
    bool is_special = false;
  };

  std::vector<SplitRule> split_rules;
  std::vector<Token> tokens;                                   ///< by id, up to the highest
  std::vector<int32_t> byte_ids;                               ///< [256] the token of each single byte
  std::unordered_map<std::string_view, int32_t> ids_of_bytes;  ///< kBytes tokens; the keys lie in `tokens`
  BpeMerges merges{0};
  AddedTokenMatcher added;
};

}  // namespace tidepool
