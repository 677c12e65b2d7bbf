#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/grammar_automaton.h"
#include "text/token_trie.h"

namespace tidepool {

/// One reading of what was written: a state and the frames below it.
struct GrammarThread {
  uint32_t state = 0;
  uint32_t stack = 0;
  friend bool operator==(const GrammarThread&, const GrammarThread&) = default;
};

/// Stacks of frames, each stack a set of alternatives ("graph-structured stack"): readings in the same state share one
/// thread, so their number stays below that of states however ambiguous a grammar is. Stacks are numbered; equal ones
/// have equal numbers.
class GrammarStacks {
 public:
  struct Frame {
    uint32_t target = 0;                                            ///< where the caller goes on
    uint32_t parent = 0;                                            ///< the stack below
    friend auto operator<=>(const Frame&, const Frame&) = default;  // NOLINT(*-nullptr,*-conversion)
  };
  /// The empty stack.
  static constexpr uint32_t kBottom = 0;

  GrammarStacks();
  [[nodiscard]] uint32_t push(uint32_t target, uint32_t parent);
  [[nodiscard]] uint32_t merge(uint32_t a, uint32_t b);
  [[nodiscard]] std::span<const Frame> frames(uint32_t stack) const {
    return {frames_.data() + stacks_[stack].begin, stacks_[stack].count};
  }
  /// Frames on the shortest way down.
  [[nodiscard]] uint32_t depth(uint32_t stack) const { return stacks_[stack].depth; }
  [[nodiscard]] size_t size() const { return stacks_.size(); }

 private:
  struct Stack {
    uint32_t begin = 0;
    uint32_t count = 0;
    uint32_t depth = 0;
  };
  uint32_t add(std::span<const Frame> frames);

  std::vector<Stack> stacks_;
  std::vector<Frame> frames_;
  std::unordered_map<uint64_t, uint32_t> single_;  ///< stacks of one alternative
  std::map<std::vector<Frame>, uint32_t> several_;
};

/// Takes bytes. A thread that is taken can always be brought to an end within the limit of frames. Values: copies are
/// independent.
class GrammarStepper {
 public:
  explicit GrammarStepper(const GrammarAutomaton& automaton, uint32_t frames_max = GrammarAutomaton::kFramesMax)
      : automaton_(&automaton), frames_max_(frames_max) {}

  /// The threads behind `byte`; none: it is not allowed.
  void step(std::span<const GrammarThread> threads, uint8_t byte, std::vector<GrammarThread>& out);
  /// Adds a thread, and those that follow because its rule may be over.
  void add(GrammarThread thread, std::vector<GrammarThread>& out);
  /// Adds the threads that go on where the frames of `stack` were called.
  void add_popped(uint32_t stack, std::vector<GrammarThread>& out);

  [[nodiscard]] const GrammarAutomaton& automaton() const { return *automaton_; }
  [[nodiscard]] const GrammarStacks& stacks() const { return stacks_; }
  /// Of all threads added, the most frames that one needs to come to an end.
  [[nodiscard]] uint32_t frames_needed() const { return frames_needed_; }

 private:
  void step_thread(GrammarThread thread, uint8_t byte, std::vector<GrammarThread>& out);

  const GrammarAutomaton* automaton_;
  uint32_t frames_max_;
  uint32_t frames_needed_ = 0;
  GrammarStacks stacks_;
};

/// Walks threads along a tree of tokens.
class TrieWalker {
 public:
  /// Calls visit(node, threads) for every node from `first` to before `last` that the threads reach. The nodes are
  /// siblings with all that is below them; `threads` hold before them.
  template <typename Visit>
  void walk(const TokenTrie::Tree& tree, uint32_t first, uint32_t last, std::span<const GrammarThread> threads,
            GrammarStepper& stepper, const Visit& visit) {
    if (first >= last) return;
    const size_t base = tree.nodes[first].depth - size_t{1};
    for (uint32_t i = first; i < last;) {
      const TokenTrie::Node& node = tree.nodes[i];
      const size_t level = node.depth - base;
      if (levels_.size() <= level) levels_.resize(level + 1);
      const std::span<const GrammarThread> before =
          level == 1 ? threads : std::span<const GrammarThread>(levels_[level - 1]);
      stepper.step(before, node.byte, levels_[level]);
      if (levels_[level].empty()) {
        i = node.end;
      } else {
        visit(i, levels_[level]);
        ++i;
      }
    }
  }

 private:
  std::vector<std::vector<GrammarThread>> levels_;  ///< by bytes taken
};

/// The tokens a state allows as far as its own rule decides, whatever the frames below are.
struct StateMask {
  std::vector<uint64_t> words;      ///< [word_count], or empty: see `ids`
  std::vector<int32_t> ids;         ///< of few tokens
  std::vector<uint32_t> pop_nodes;  ///< nodes of `tree` at which the rule may be over, and that have nodes below
  PlainKind tree = PlainKind::kNone;
  uint32_t frames_needed = 0;  ///< beyond those below

  void add_to(std::span<uint64_t> mask) const;
  [[nodiscard]] size_t bytes() const;
};

/// Masks of states, made when they are first needed and kept up to a limit. Thread-safe.
class StateMaskCache {
 public:
  /// More bytes than that, and all are forgotten.
  static constexpr size_t kBytesMax = size_t{32} << 20;

  /// Both must outlive the cache.
  StateMaskCache(const GrammarAutomaton& automaton, const TokenTrie& trie) : automaton_(automaton), trie_(trie) {}
  [[nodiscard]] std::shared_ptr<const StateMask> get(uint32_t state);
  [[nodiscard]] size_t bytes() const;

 private:
  [[nodiscard]] StateMask make(uint32_t state) const;

  const GrammarAutomaton& automaton_;
  const TokenTrie& trie_;
  mutable std::mutex mutex_;
  std::unordered_map<uint32_t, std::shared_ptr<const StateMask>> masks_;
  size_t bytes_ = 0;
};

}  // namespace tidepool
