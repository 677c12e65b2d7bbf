#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar_automaton.h"
#include "text/grammar_json.h"
#include "text/tokenizer.h"

namespace tidepool {

/// Allows token `id` in a mask: bit id % 64 of word id / 64.
inline void set_bit(std::span<uint64_t> words, int32_t id) {
  words[static_cast<size_t>(id) / 64] |= uint64_t{1} << (static_cast<size_t>(id) % 64);
}

/// Watches a text for guarded ones: all places at which one may be under way, as bits.
class TextGuard {
 public:
  explicit TextGuard(const std::vector<std::string_view>& texts);
  /// Nothing is under way.
  static constexpr uint64_t kStart = 0;

  /// The state behind `byte`; nothing when a guarded text is then complete.
  [[nodiscard]] std::optional<uint64_t> step(uint64_t state, uint8_t byte) const;
  /// What would complete a guarded text from here; bit i of a state stands for rests()[i].
  [[nodiscard]] const std::vector<std::string>& rests() const { return rests_; }

 private:
  std::array<uint64_t, 256> places_{};  ///< by byte
  uint64_t starts_ = 0;
  uint64_t ends_ = 0;
  std::vector<std::string> rests_;
};

/// The tokens of a vocabulary by their bytes, as prefix trees that a grammar can be walked along. Immutable; any number
/// of threads.
class TokenTrie {
 public:
  /// In order of a walk that visits a node before its children.
  struct Node {
    uint32_t end = 0;          ///< behind the last node below this one
    uint32_t token_begin = 0;  ///< its tokens, and behind them those below, in `tokens`
    uint16_t depth = 0;        ///< bytes from the root, at least 1
    uint8_t byte = 0;
  };
  struct Tree {
    std::vector<Node> nodes;
    std::vector<int32_t> tokens;
    /// The tokens that end at a node.
    [[nodiscard]] std::span<const int32_t> tokens_at(uint32_t node) const;
    /// Those and the tokens below.
    [[nodiscard]] std::span<const int32_t> tokens_below(uint32_t node) const;
  };
  enum class TokenKind : uint8_t {
    kText,   ///< has bytes; the control tokens a grammar knows have kMarkByte and kThinkEndByte
    kOther,  ///< control tokens, and ids without bytes: taken where a grammar is free, and means nothing
    kNever,  ///< contains a guarded text
  };
  /// Masks are made for plain tokens of up to so many characters.
  static constexpr uint32_t kPlainCharsMax = PlainRun::kExactBelow;

  /// `texts` by id, empty: kOther. With MarkForm::kControlToken one of them is kMarkByte.
  TokenTrie(std::vector<std::string> texts, MarkForm form);
  /// The vocabulary of a tokenizer. A tokenizer without the mark has it as text.
  [[nodiscard]] static TokenTrie from_tokenizer(const Tokenizer& tokenizer);

  [[nodiscard]] MarkForm mark_form() const { return form_; }
  [[nodiscard]] const TextGuard& guard() const { return guard_; }
  [[nodiscard]] size_t vocabulary_size() const { return texts_.size(); }
  /// 64-bit words of a mask: bit id % 64 of word id / 64 stands for a token.
  [[nodiscard]] size_t word_count() const { return (texts_.size() + 63) / 64; }
  [[nodiscard]] TokenKind kind(int32_t id) const { return kinds_[static_cast<size_t>(id)]; }
  [[nodiscard]] std::string_view text(int32_t id) const { return texts_[static_cast<size_t>(id)]; }
  /// Tokens that stand for this byte alone.
  [[nodiscard]] std::span<const int32_t> tokens_of_byte(uint8_t byte) const;

  /// All text tokens, or without the plain ones of a kind of up to kPlainCharsMax characters.
  [[nodiscard]] const Tree& tree(PlainKind without) const { return trees_[static_cast<size_t>(without)]; }
  /// The plain tokens of up to so many characters, kPlainCharsMax at most. [word_count]
  [[nodiscard]] std::span<const uint64_t> plain(PlainKind kind, uint32_t chars_max) const;
  /// All but kNever and the grammar's control tokens. [word_count]
  [[nodiscard]] std::span<const uint64_t> free_tokens() const { return free_; }
  /// The tokens that complete guarded text number `rest` of guard().rests() at once.
  [[nodiscard]] std::span<const int32_t> tokens_completing(size_t rest) const;
  [[nodiscard]] size_t bytes() const;

 private:
  [[nodiscard]] Tree make_tree(const std::vector<int32_t>& sorted, PlainKind without) const;
  [[nodiscard]] std::optional<uint32_t> plain_chars(int32_t id, PlainKind kind) const;
  void make_plain(PlainKind kind);

  std::vector<std::string> texts_;
  MarkForm form_;
  TextGuard guard_;
  std::vector<TokenKind> kinds_;
  std::array<Tree, 3> trees_;                   ///< by PlainKind
  std::array<std::vector<uint64_t>, 3> plain_;  ///< by PlainKind; [kPlainCharsMax + 1, word_count]
  std::vector<uint64_t> free_;
  std::vector<std::optional<uint32_t>> completing_;  ///< by rest: a node of the whole tree
};

}  // namespace tidepool
