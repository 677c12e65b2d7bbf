#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace tidepool {

/// Bytes that no UTF-8 text has stand for the control tokens that a grammar knows: the mark inside tool-call tags and
/// the end of the reasoning. So neither can be spelled with ordinary tokens where the grammar wants the control token.
inline constexpr uint8_t kMarkByte = 0xFF;
inline constexpr uint8_t kThinkEndByte = 0xFE;

/// A set of bytes.
class ByteSet {
 public:
  void add(uint8_t byte) { words_[byte / 64U] |= uint64_t{1} << (byte % 64U); }
  [[nodiscard]] bool contains(uint8_t byte) const { return (words_[byte / 64U] >> (byte % 64U) & 1U) != 0; }
  /// Returns whether the set grew.
  bool unite(const ByteSet& other);

 private:
  std::array<uint64_t, 4> words_{};
};

/// Characters that a stretch of text may have in any order. Masks of whole stretches of the vocabulary are made from
/// this.
enum class PlainKind : uint8_t {
  kNone,
  kJson,  ///< what a JSON string holds without escapes: UTF-8 without '"', '\' and bytes below 0x20
  kRaw,   ///< UTF-8 without '<'
};

/// What a state says about plain characters.
struct PlainRun {
  PlainKind kind = PlainKind::kNone;
  /// So many of them are taken from here, and not one more; kUnlimited: any number. From kExactBelow on only a lower
  /// bound is meant.
  uint32_t chars_max = 0;
  static constexpr uint32_t kExactBelow = 32;
  static constexpr uint32_t kUnlimited = std::numeric_limits<uint32_t>::max();
};

/// A set of rules over bytes that can call each other, each rule a deterministic automaton. Between rules the choice
/// may be open (a byte edge and a call, or two calls, that begin alike): the matcher follows all readings.
///
/// Every rule reads at least one byte, and no rule calls another before its first byte in a circle. Immutable once
/// built.
class GrammarAutomaton {
 public:
  static constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();
  /// Frames that may be open at a time; also bounds the nesting of what is written.
  static constexpr uint32_t kFramesMax = 96;

  struct Edge {
    uint8_t first = 0;
    uint8_t last = 0;
    uint32_t target = 0;
  };
  struct Call {
    uint32_t rule = 0;
    uint32_t target = 0;  ///< where the caller goes on
  };
  struct State {
    uint32_t edges_begin = 0;
    uint32_t edge_count = 0;
    uint32_t calls_begin = 0;
    uint32_t call_count = 0;
    /// Frames that must at least be opened on top of this one before its rule can end; kNever: it cannot end.
    uint32_t height = kNever;
    PlainRun plain;
    bool is_final = false;
    /// Every token that is not one of the grammar's control tokens is taken and leads back here.
    bool is_free = false;
  };
  struct Rule {
    uint32_t entry = 0;
    ByteSet first;
  };

  [[nodiscard]] const State& state(uint32_t index) const { return states_[index]; }
  [[nodiscard]] std::span<const Edge> edges(const State& state) const {
    return {edges_.data() + state.edges_begin, state.edge_count};
  }
  [[nodiscard]] std::span<const Call> calls(const State& state) const {
    return {calls_.data() + state.calls_begin, state.call_count};
  }
  [[nodiscard]] const Rule& rule(uint32_t index) const { return rules_[index]; }
  [[nodiscard]] uint32_t start() const { return rules_[root_].entry; }
  [[nodiscard]] size_t state_count() const { return states_.size(); }
  [[nodiscard]] size_t bytes() const;

 private:
  friend class GrammarBuilder;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<Call> calls_;
  std::vector<Rule> rules_;
  uint32_t root_ = 0;
};

/// A rule while it is written: a nondeterministic automaton. States are counted from 0; 0 is where the rule begins and
/// 1 where it ends.
class RuleNfa {
 public:
  static constexpr uint32_t kStart = 0;
  static constexpr uint32_t kEnd = 1;

  RuleNfa();
  [[nodiscard]] uint32_t add_state();
  void add_edge(uint32_t from, uint8_t first, uint8_t last, uint32_t to);
  void add_byte(uint32_t from, char byte, uint32_t to);
  /// A step that reads nothing.
  void add_empty(uint32_t from, uint32_t to) { states_[from].empties.push_back(to); }
  void add_call(uint32_t from, uint32_t rule, uint32_t to) { states_[from].calls.push_back({rule, to}); }
  /// Returns the state behind `text`.
  [[nodiscard]] uint32_t add_text(uint32_t from, std::string_view text);
  /// `text` is not empty.
  void add_text(uint32_t from, std::string_view text, uint32_t to);
  /// All UTF-8 sequences of the code points `first` to `last`, which must not be surrogates on both ends.
  void add_code_points(uint32_t from, char32_t first, char32_t last, uint32_t to);
  void set_plain(uint32_t state, PlainRun plain) { states_[state].plain = plain; }
  void set_free(uint32_t state) { states_[state].is_free = true; }
  [[nodiscard]] size_t state_count() const { return states_.size(); }

 private:
  friend class Determiniser;
  struct State {
    std::vector<GrammarAutomaton::Edge> edges;
    std::vector<uint32_t> empties;
    std::vector<GrammarAutomaton::Call> calls;
    PlainRun plain;
    bool is_free = false;
  };
  std::vector<State> states_;
};

/// Collects rules into an automaton.
class GrammarBuilder {
 public:
  /// States of all rules together, and sizes of the sets the subset construction meets: a grammar beyond is refused.
  static constexpr size_t kStatesMax = 500'000;
  static constexpr size_t kWorkMax = 20'000'000;

  /// A rule to be defined later; calls may name it at once.
  [[nodiscard]] uint32_t declare_rule();
  /// Throws Error(kInvalidArgument) when a limit is exceeded.
  void define_rule(uint32_t rule, const RuleNfa& nfa);
  /// Every declared rule is defined. Throws Error(kInvalidArgument) when the root can never end, or only with more open
  /// frames than there may be.
  [[nodiscard]] GrammarAutomaton finish(uint32_t root);

 private:
  void compute_first();
  void compute_heights();
  void inherit_plain_runs();

  GrammarAutomaton automaton_;
  size_t work_ = 0;
};

}  // namespace tidepool
