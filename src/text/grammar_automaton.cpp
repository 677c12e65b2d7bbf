#include "text/grammar_automaton.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace tidepool {

namespace {

constexpr uint32_t kUndefined = GrammarAutomaton::kNever;

/// One way in which the code points of a range are written: a range for each byte.
struct Utf8Ranges {
  std::array<uint8_t, 4> first{};
  std::array<uint8_t, 4> last{};
  size_t length = 0;
};

size_t utf8_length(char32_t code_point) {
  if (code_point < 0x80) return 1;
  if (code_point < 0x800) return 2;
  return code_point < 0x10000 ? 3 : 4;
}

std::array<uint8_t, 4> utf8_bytes(char32_t code_point, size_t length) {
  std::array<uint8_t, 4> bytes{};
  if (length == 1) {
    bytes[0] = static_cast<uint8_t>(code_point);
    return bytes;
  }
  constexpr std::array<uint8_t, 5> kLead = {0, 0, 0xC0, 0xE0, 0xF0};
  for (size_t i = length; i-- > 1; code_point >>= 6)
    bytes[i] = static_cast<uint8_t>(0x80U | (code_point & 0x3FU));
  bytes[0] = static_cast<uint8_t>(kLead[length] | code_point);
  return bytes;
}

/// Splits until first and last differ only in a suffix that runs over all continuation bytes.
void split_utf8(char32_t first, char32_t last, std::vector<Utf8Ranges>& out) {
  if (first > last) return;
  for (const char32_t border : {U'\x7F', U'\x7FF', U'\xFFFF'}) {
    if (first <= border && last > border) {
      split_utf8(first, border, out);
      split_utf8(border + 1, last, out);
      return;
    }
  }
  for (size_t i = 1; i < utf8_length(first); ++i) {
    const char32_t mask = (char32_t{1} << (6 * i)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      split_utf8(first, first | mask, out);
      split_utf8((first | mask) + 1, last, out);
      return;
    }
    if ((last & mask) != mask) {
      split_utf8(first, (last & ~mask) - 1, out);
      split_utf8(last & ~mask, last, out);
      return;
    }
  }
  const size_t length = utf8_length(first);
  out.push_back({utf8_bytes(first, length), utf8_bytes(last, length), length});
}

}  // namespace

bool ByteSet::unite(const ByteSet& other) {
  bool grew = false;
  for (size_t i = 0; i < words_.size(); ++i) {
    const uint64_t united = words_[i] | other.words_[i];
    grew = grew || united != words_[i];
    words_[i] = united;
  }
  return grew;
}

size_t GrammarAutomaton::bytes() const {
  return states_.size() * sizeof(State) + edges_.size() * sizeof(Edge) + calls_.size() * sizeof(Call) +
         rules_.size() * sizeof(Rule);
}

RuleNfa::RuleNfa() : states_(2) {}

uint32_t RuleNfa::add_state() {
  states_.emplace_back();
  return static_cast<uint32_t>(states_.size() - 1);
}

void RuleNfa::add_edge(uint32_t from, uint8_t first, uint8_t last, uint32_t to) {
  states_[from].edges.push_back({first, last, to});
}

void RuleNfa::add_byte(uint32_t from, char byte, uint32_t to) {
  add_edge(from, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), to);
}

uint32_t RuleNfa::add_text(uint32_t from, std::string_view text) {
  for (const char byte : text) {
    const uint32_t next = add_state();
    add_byte(from, byte, next);
    from = next;
  }
  return from;
}

void RuleNfa::add_text(uint32_t from, std::string_view text, uint32_t to) {
  TIDEPOOL_CHECK(!text.empty(), "a text between two states has a byte");
  add_byte(add_text(from, text.substr(0, text.size() - 1)), text.back(), to);
}

void RuleNfa::add_code_points(uint32_t from, char32_t first, char32_t last, uint32_t to) {
  constexpr char32_t kSurrogateFirst = 0xD800;
  constexpr char32_t kSurrogateLast = 0xDFFF;
  std::vector<Utf8Ranges> ways;
  if (first < kSurrogateFirst) split_utf8(first, std::min<char32_t>(last, kSurrogateFirst - 1), ways);
  if (last > kSurrogateLast) split_utf8(std::max<char32_t>(first, kSurrogateLast + 1), last, ways);
  for (const Utf8Ranges& way : ways) {
    uint32_t state = from;
    for (size_t i = 0; i < way.length; ++i) {
      const uint32_t next = i + 1 == way.length ? to : add_state();
      add_edge(state, way.first[i], way.last[i], next);
      state = next;
    }
  }
}

/// The subset construction for one rule. Calls are symbols like bytes.
class Determiniser {
 public:
  Determiniser(const RuleNfa& nfa, uint32_t offset, size_t& work) : nfa_(nfa), offset_(offset), work_(work) {
    stamps_.resize(nfa.states_.size());
    (void)find({RuleNfa::kStart});
  }

  /// Makes the next state. Returns false when there is none.
  bool next(GrammarAutomaton::State& state, std::vector<GrammarAutomaton::Edge>& edges,
            std::vector<GrammarAutomaton::Call>& calls) {
    if (done_ == subsets_.size()) return false;
    const std::vector<uint32_t>& subset = *subsets_[done_++];
    state.edges_begin = static_cast<uint32_t>(edges.size());
    state.calls_begin = static_cast<uint32_t>(calls.size());
    std::map<uint32_t, std::vector<uint32_t>> by_rule;
    for (const uint32_t member : subset) {
      const RuleNfa::State& from = nfa_.states_[member];
      for (const GrammarAutomaton::Edge& edge : from.edges) {
        for (unsigned byte = edge.first; byte <= edge.last; ++byte)
          by_byte_[byte].push_back(edge.target);
      }
      for (const GrammarAutomaton::Call& call : from.calls)
        by_rule[call.rule].push_back(call.target);
      // Beside others a state's limit may not be the last word.
      const bool is_plain =
          from.plain.kind != PlainKind::kNone && (subset.size() == 1 || from.plain.chars_max >= PlainRun::kExactBelow);
      if (is_plain) state.plain = from.plain;
      state.is_free = state.is_free || from.is_free;
      state.is_final = state.is_final || member == RuleNfa::kEnd;
    }
    add_edges(edges);
    for (auto& [rule, targets] : by_rule)
      calls.push_back({rule, find(std::move(targets))});
    state.edge_count = static_cast<uint32_t>(edges.size()) - state.edges_begin;
    state.call_count = static_cast<uint32_t>(calls.size()) - state.calls_begin;
    return true;
  }

 private:
  void add_edges(std::vector<GrammarAutomaton::Edge>& edges) {
    const std::vector<uint32_t>* previous = nullptr;
    for (unsigned byte = 0; byte < by_byte_.size(); ++byte) {
      const std::vector<uint32_t>& targets = by_byte_[byte];
      if (targets.empty()) {
        previous = nullptr;
      } else if (previous != nullptr && *previous == targets) {
        edges.back().last = static_cast<uint8_t>(byte);
        previous = &targets;
      } else {
        const auto value = static_cast<uint8_t>(byte);
        edges.push_back({value, value, find(targets)});
        previous = &targets;
      }
    }
    for (std::vector<uint32_t>& targets : by_byte_)
      targets.clear();
  }

  /// The deterministic state that stands for these states and all that empty steps reach from them.
  uint32_t find(std::vector<uint32_t> members) {
    ++stamp_;
    std::vector<uint32_t> reached;
    while (!members.empty()) {
      const uint32_t member = members.back();
      members.pop_back();
      if (std::exchange(stamps_[member], stamp_) == stamp_) continue;
      const RuleNfa::State& state = nfa_.states_[member];
      const bool matters = member == RuleNfa::kEnd || !state.edges.empty() || !state.calls.empty();
      if (matters) reached.push_back(member);
      members.insert(members.end(), state.empties.begin(), state.empties.end());
    }
    std::ranges::sort(reached);
    work_ += 1 + reached.size();
    if (work_ > GrammarBuilder::kWorkMax || offset_ + subsets_.size() > GrammarBuilder::kStatesMax) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the grammar is too large: more than {} states; use fewer or simpler schemas, lower "
                              "limits of lengths and counts, or shorter patterns",
                              GrammarBuilder::kStatesMax));
    }
    const auto [place, is_new] = index_.try_emplace(std::move(reached), offset_ + subsets_.size());
    if (is_new) subsets_.push_back(&place->first);
    return static_cast<uint32_t>(place->second);
  }

  const RuleNfa& nfa_;
  size_t offset_;
  size_t& work_;
  std::map<std::vector<uint32_t>, size_t> index_;
  std::vector<const std::vector<uint32_t>*> subsets_;  ///< keys of index_, by state
  size_t done_ = 0;
  std::vector<uint32_t> stamps_;
  uint32_t stamp_ = 0;
  std::array<std::vector<uint32_t>, 256> by_byte_;
};

uint32_t GrammarBuilder::declare_rule() {
  automaton_.rules_.push_back({kUndefined, {}});
  return static_cast<uint32_t>(automaton_.rules_.size() - 1);
}

void GrammarBuilder::define_rule(uint32_t rule, const RuleNfa& nfa) {
  TIDEPOOL_CHECK(automaton_.rules_[rule].entry == kUndefined, "a rule is defined once");
  const auto entry = static_cast<uint32_t>(automaton_.states_.size());
  automaton_.rules_[rule].entry = entry;
  Determiniser determiniser(nfa, entry, work_);
  GrammarAutomaton::State state;
  while (determiniser.next(state, automaton_.edges_, automaton_.calls_))
    automaton_.states_.push_back(std::exchange(state, {}));
}

/// The bytes each rule can begin with, to a fixed point.
void GrammarBuilder::compute_first() {
  bool changed = true;
  while (changed) {
    changed = false;
    for (GrammarAutomaton::Rule& rule : automaton_.rules_) {
      const GrammarAutomaton::State& entry = automaton_.state(rule.entry);
      ByteSet first;
      for (const GrammarAutomaton::Edge& edge : automaton_.edges(entry)) {
        for (unsigned byte = edge.first; byte <= edge.last; ++byte)
          first.add(static_cast<uint8_t>(byte));
      }
      for (const GrammarAutomaton::Call& call : automaton_.calls(entry))
        first.unite(automaton_.rules_[call.rule].first);
      changed = rule.first.unite(first) || changed;
    }
  }
}

/// To a fixed point, from the back: states are numbered in the order in which they are reached.
void GrammarBuilder::compute_heights() {
  bool changed = true;
  while (changed) {
    changed = false;
    for (size_t i = automaton_.states_.size(); i-- > 0;) {
      GrammarAutomaton::State& state = automaton_.states_[i];
      uint32_t height = state.is_final ? 0 : state.height;
      for (const GrammarAutomaton::Edge& edge : automaton_.edges(state))
        height = std::min(height, automaton_.states_[edge.target].height);
      for (const GrammarAutomaton::Call& call : automaton_.calls(state)) {
        const uint32_t inner = automaton_.states_[automaton_.rules_[call.rule].entry].height;
        // Beyond the limit a rule is out of reach; so chains of calls end soon whatever order they are in.
        if (inner >= GrammarAutomaton::kFramesMax) continue;
        height = std::min(height, std::max(inner + 1, automaton_.states_[call.target].height));
      }
      changed = changed || height != state.height;
      state.height = height;
    }
  }
}

/// A state that goes on with a call takes the plain characters that the called rule takes.
void GrammarBuilder::inherit_plain_runs() {
  for (GrammarAutomaton::State& state : automaton_.states_) {
    if (state.plain.kind != PlainKind::kNone) continue;
    for (const GrammarAutomaton::Call& call : automaton_.calls(state)) {
      const PlainRun plain = automaton_.states_[automaton_.rules_[call.rule].entry].plain;
      const bool is_only_way = state.call_count == 1 && state.edge_count == 0;
      if (plain.kind != PlainKind::kNone && (is_only_way || plain.chars_max >= PlainRun::kExactBelow))
        state.plain = plain;
    }
  }
}

GrammarAutomaton GrammarBuilder::finish(uint32_t root) {
  for (const GrammarAutomaton::Rule& rule : automaton_.rules_)
    TIDEPOOL_CHECK(rule.entry != kUndefined, "every rule is defined");
  automaton_.root_ = root;
  compute_first();
  compute_heights();
  inherit_plain_runs();
  const uint32_t height = automaton_.state(automaton_.start()).height;
  if (height > GrammarAutomaton::kFramesMax) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the schema allows no value, or none that is nested less than {} levels deep: its "
                            "requirements contradict each other, or never come to an end",
                            GrammarAutomaton::kFramesMax));
  }
  return std::move(automaton_);
}

}  // namespace tidepool
