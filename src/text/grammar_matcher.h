#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/grammar.h"
#include "text/grammar_automaton.h"
#include "text/token_mask.h"
#include "text/token_trie.h"

namespace tidepool {

/// A grammar made ready for a vocabulary. Immutable but for its cache of masks; any number of threads.
class CompiledGrammar {
 public:
  /// `end_ids`: the tokens that end an output. They are allowed exactly where the grammar may end, whatever else they
  /// stand for.
  CompiledGrammar(MadeGrammar made, std::shared_ptr<const TokenTrie> trie, std::vector<int32_t> end_ids);
  CompiledGrammar(const CompiledGrammar&) = delete;
  CompiledGrammar& operator=(const CompiledGrammar&) = delete;
  ~CompiledGrammar() = default;

  [[nodiscard]] const GrammarAutomaton& automaton() const { return made_.automaton; }
  [[nodiscard]] const TokenTrie& trie() const { return *trie_; }
  [[nodiscard]] std::span<const int32_t> end_ids() const { return end_ids_; }
  [[nodiscard]] const std::vector<std::string>& untyped_tools() const { return made_.untyped_tools; }
  [[nodiscard]] std::shared_ptr<const StateMask> state_mask(uint32_t state) const { return masks_.get(state); }
  /// Of memory, masks included.
  [[nodiscard]] size_t bytes() const { return made_.automaton.bytes() + masks_.bytes(); }

 private:
  MadeGrammar made_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<int32_t> end_ids_;
  mutable StateMaskCache masks_;
};

/// Compiled grammars of one vocabulary, the least recently used ones forgotten. Thread-safe.
class GrammarCache {
 public:
  static constexpr size_t kGrammarsMax = 64;
  static constexpr size_t kBytesMax = size_t{256} << 20;

  GrammarCache(std::shared_ptr<const TokenTrie> trie, std::vector<int32_t> end_ids)
      : trie_(std::move(trie)), end_ids_(std::move(end_ids)) {}

  /// Throws Error as make_grammar does; nothing is remembered then.
  [[nodiscard]] std::shared_ptr<const CompiledGrammar> get(const OutputGrammar& grammar);
  [[nodiscard]] size_t size() const;
  [[nodiscard]] const TokenTrie& trie() const { return *trie_; }

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const CompiledGrammar> grammar;
  };
  void drop_oldest();

  std::shared_ptr<const TokenTrie> trie_;
  std::vector<int32_t> end_ids_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  ///< the last used one first
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
};

/// Follows one output through a grammar. A value: copies are independent, and each belongs to one thread at a time.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar);

  /// Bit id % 64 of word id / 64: whether the token may come next. words [trie().word_count()]; bits beyond the
  /// vocabulary are 0. Behind an end token, only end tokens may come.
  void fill_mask(std::span<uint64_t> words);
  /// Takes a token. Returns false, and nothing changes, when it is not allowed.
  [[nodiscard]] bool accept(int32_t id);
  /// Takes text of the output that is not sampled, control tokens as kMarkByte and kThinkEndByte; it counts as one
  /// token. Returns false, and nothing changes, when it is not allowed.
  [[nodiscard]] bool accept_text(std::string_view text);
  /// Takes back the last `count` of the accepted_count() tokens.
  void rollback(size_t count);
  [[nodiscard]] size_t accepted_count() const { return history_.size(); }
  /// Whether the output may end here.
  [[nodiscard]] bool can_end() const;
  /// Whether an end token was taken.
  [[nodiscard]] bool has_ended() const { return has_ended_; }
  [[nodiscard]] const CompiledGrammar& grammar() const { return *grammar_; }

 private:
  /// What was before a token; its threads are at the end of past_threads_.
  struct Past {
    uint32_t thread_count = 0;
    bool has_ended = false;
    uint64_t guard = 0;
  };

  void remember();
  [[nodiscard]] bool take(std::string_view text);
  [[nodiscard]] bool is_end(int32_t id) const;
  [[nodiscard]] bool is_free() const;
  void add_thread_mask(GrammarThread thread, std::span<uint64_t> words);
  void add_byte_tokens(uint8_t byte, std::span<uint64_t> words);
  void remove_guarded(std::span<uint64_t> words) const;

  std::shared_ptr<const CompiledGrammar> grammar_;
  GrammarStepper stepper_;
  TrieWalker walker_;
  std::vector<GrammarThread> threads_;
  uint64_t guard_ = TextGuard::kStart;
  bool has_ended_ = false;
  std::vector<GrammarThread> next_;    ///< scratch
  std::vector<GrammarThread> popped_;  ///< scratch
  std::vector<Past> history_;
  std::vector<GrammarThread> past_threads_;
};

}  // namespace tidepool
