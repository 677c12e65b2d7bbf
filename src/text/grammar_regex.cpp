#include "text/grammar_regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "text/grammar_regex_parse.h"
#include "text/unicode.h"

namespace tidepool {

namespace {

constexpr size_t kNfaStatesMax = 20'000;
constexpr size_t kWorkMax = 4'000'000;

[[noreturn]] void refuse_size() {
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("the pattern (with the limits of length beside it) needs more than {} states; make it shorter "
                  "or lower its counts",
                  CharDfa::kStatesMax));
}

std::u32string code_points(std::string_view text) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = read_utf8_unit(text, at);
    out += unit.code_point;
    at += unit.length;
  }
  return out;
}

std::optional<uint32_t> find_target(const CharDfa::State& state, char32_t code_point) {
  const auto edge =
      std::ranges::find_if(state.edges, [&](const CharDfa::Edge& candidate) { return code_point <= candidate.last; });
  if (edge == state.edges.end() || code_point < edge->first) return std::nullopt;
  return edge->target;
}

/// Adds an edge behind the others, joined with the one before where they are one.
void append_edge(std::vector<CharDfa::Edge>& edges, const CharDfa::Edge& edge) {
  if (!edges.empty() && edges.back().target == edge.target && edges.back().last + 1 == edge.first) {
    edges.back().last = edge.last;
  } else {
    edges.push_back(edge);
  }
}

}  // namespace

/// Thompson's construction over the syntax tree, then subsets.
class CharNfa {
 public:
  struct State {
    std::vector<CharDfa::Edge> edges;
    std::vector<uint32_t> empties;
  };

  uint32_t add_state() {
    if (states_.size() >= kNfaStatesMax) refuse_size();
    states_.emplace_back();
    return static_cast<uint32_t>(states_.size() - 1);
  }

  /// Returns the state behind the node.
  uint32_t add(const RegexNode& node, uint32_t from) {
    if (++added_nodes_ > 4 * kNfaStatesMax) refuse_size();  // repetitions of nothing make no states
    switch (node.kind) {
      case RegexNode::Kind::kEmpty: return from;
      case RegexNode::Kind::kClass: {
        const uint32_t to = add_state();
        for (const CodePointRange& range : node.ranges)
          states_[from].edges.push_back({range.first, range.last, to});
        return to;
      }
      case RegexNode::Kind::kConcat:
        for (const RegexNode& child : node.children)
          from = add(child, from);
        return from;
      case RegexNode::Kind::kAlternatives: {
        const uint32_t to = add_state();
        for (const RegexNode& child : node.children) {
          const uint32_t begin = add_state();
          states_[from].empties.push_back(begin);
          const uint32_t end = add(child, begin);
          states_[end].empties.push_back(to);
        }
        return to;
      }
      case RegexNode::Kind::kRepeat: return add_repeat(node, from);
      case RegexNode::Kind::kStart:
      case RegexNode::Kind::kEnd: break;
    }
    return from;  // anchors are gone before this is called
  }

  CharDfa determinise(uint32_t end) {
    end_ = end;
    CharDfa dfa;
    (void)find({0});
    size_t done = 0;
    while (done < subsets_.size()) {  // find() appends to it
      CharDfa::State state;
      const std::vector<uint32_t>& subset = *subsets_[done++];
      state.is_accepting = std::ranges::binary_search(subset, end_);
      state.edges = combined_edges(subset);
      dfa.states_.push_back(std::move(state));
    }
    dfa.trim();
    return dfa;
  }

 private:
  uint32_t add_repeat(const RegexNode& node, uint32_t from) {
    const RegexNode& child = node.children.front();
    for (uint32_t i = 0; i < node.repeat_min; ++i)
      from = add(child, from);
    const uint32_t to = add_state();
    if (node.repeat_max == RegexNode::kUnlimited) {
      const uint32_t loop = add_state();
      states_[from].empties.push_back(loop);
      const uint32_t end = add(child, loop);
      states_[end].empties.push_back(loop);
      states_[loop].empties.push_back(to);
      return to;
    }
    for (uint32_t i = node.repeat_min; i < node.repeat_max; ++i) {
      states_[from].empties.push_back(to);
      from = add(child, from);
    }
    states_[from].empties.push_back(to);
    return to;
  }

  uint32_t find(std::vector<uint32_t> members) {
    std::vector<uint32_t> reached;
    seen_.assign(states_.size(), false);
    while (!members.empty()) {
      const uint32_t member = members.back();
      members.pop_back();
      if (seen_[member]) continue;
      seen_[member] = true;
      if (member == end_ || !states_[member].edges.empty()) reached.push_back(member);
      members.insert(members.end(), states_[member].empties.begin(), states_[member].empties.end());
    }
    std::ranges::sort(reached);
    work_ += 1 + reached.size() + states_.size() / 64;
    const auto [place, is_new] = index_.try_emplace(std::move(reached), subsets_.size());
    if (is_new) subsets_.push_back(&place->first);
    if (subsets_.size() > CharDfa::kStatesMax || work_ > kWorkMax) refuse_size();
    return static_cast<uint32_t>(place->second);
  }

  /// Sweeps over the borders of all ranges.
  std::vector<CharDfa::Edge> combined_edges(const std::vector<uint32_t>& subset) {
    std::vector<CharDfa::Edge> all;
    std::vector<char32_t> borders;
    for (const uint32_t member : subset) {
      for (const CharDfa::Edge& edge : states_[member].edges) {
        all.push_back(edge);
        borders.push_back(edge.first);
        borders.push_back(edge.last + 1);
      }
    }
    std::ranges::sort(borders);
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    std::ranges::sort(all, {}, &CharDfa::Edge::first);
    std::vector<CharDfa::Edge> edges;
    std::vector<CharDfa::Edge> open;
    size_t next = 0;
    for (size_t i = 0; i + 1 < borders.size(); ++i) {
      std::erase_if(open, [&](const CharDfa::Edge& edge) { return edge.last < borders[i]; });
      for (; next < all.size() && all[next].first == borders[i]; ++next)
        open.push_back(all[next]);
      work_ += open.size();
      if (open.empty()) continue;
      std::vector<uint32_t> targets;
      targets.reserve(open.size());
      for (const CharDfa::Edge& edge : open)
        targets.push_back(edge.target);
      append_edge(edges, {borders[i], borders[i + 1] - 1, find(std::move(targets))});
    }
    return edges;
  }

  std::vector<State> states_;
  uint32_t end_ = 0;
  std::map<std::vector<uint32_t>, size_t> index_;
  std::vector<const std::vector<uint32_t>*> subsets_;
  std::vector<bool> seen_;
  size_t work_ = 0;
  size_t added_nodes_ = 0;
};

CharDfa CharDfa::from_pattern(std::string_view pattern) {
  const RegexNode tree = parse_regex(pattern);
  CharNfa nfa;
  const uint32_t end = nfa.add(tree, nfa.add_state());
  return nfa.determinise(end);
}

CharDfa CharDfa::from_length(uint32_t chars_min, uint32_t chars_max) {
  const bool is_limited = chars_max != kUnlimited;
  const uint32_t count = is_limited ? chars_max : chars_min;
  if (count >= kStatesMax) refuse_size();
  CharDfa dfa;
  dfa.states_.resize(size_t{count} + 1);
  for (uint32_t i = 0; i <= count; ++i) {
    State& state = dfa.states_[i];
    state.is_accepting = i >= chars_min;
    if (i < count || !is_limited) state.edges.push_back({0, kCodePointMax, std::min(i + 1, count)});
  }
  dfa.trim();
  return dfa;
}

CharDfa CharDfa::all_but(const std::vector<std::string>& texts) {
  CharDfa dfa;
  constexpr uint32_t kAny = 0;
  dfa.states_.push_back({{{0, kCodePointMax, kAny}}, true});
  std::vector<std::map<char32_t, uint32_t>> children(2);  // by state; 1 is the start until the end
  std::vector<bool> is_text(2, false);
  for (const std::string& text : texts) {
    uint32_t at = 1;
    for (const char32_t code_point : code_points(text)) {
      const auto [child, is_new] = children[at].try_emplace(code_point, static_cast<uint32_t>(children.size()));
      at = child->second;
      if (!is_new) continue;
      if (children.size() >= kStatesMax) refuse_size();
      children.emplace_back();
      is_text.push_back(false);
    }
    is_text[at] = true;
  }
  for (size_t i = 1; i < children.size(); ++i) {
    State state;
    state.is_accepting = !is_text[i];
    char32_t from = 0;
    for (const auto& [code_point, target] : children[i]) {
      if (code_point > from) state.edges.push_back({from, code_point - 1, kAny});
      state.edges.push_back({code_point, code_point, target});
      from = code_point + 1;
    }
    if (from <= kCodePointMax) state.edges.push_back({from, kCodePointMax, kAny});
    dfa.states_.push_back(std::move(state));
  }
  // The start comes first.
  std::swap(dfa.states_[0], dfa.states_[1]);
  for (State& state : dfa.states_) {
    for (Edge& edge : state.edges)
      edge.target = edge.target <= 1 ? 1 - edge.target : edge.target;
  }
  return dfa;
}

/// Knuth, Morris and Pratt: a state is how much of the text was just read.
CharDfa CharDfa::all_without(std::string_view text) {
  const std::u32string needle = code_points(text);
  CharDfa dfa;
  for (size_t matched = 0; matched < needle.size(); ++matched) {
    std::map<char32_t, uint32_t> targets;
    for (const char32_t next : needle) {
      const std::u32string read = needle.substr(0, matched) + next;
      size_t length = std::min(read.size(), needle.size());
      while (length > 0 && !read.ends_with(std::u32string_view(needle).substr(0, length)))
        --length;
      targets[next] = static_cast<uint32_t>(length);
    }
    State state;
    state.is_accepting = true;
    char32_t from = 0;
    for (const auto& [code_point, target] : targets) {
      if (code_point > from) append_edge(state.edges, {from, code_point - 1, 0});
      if (target < needle.size()) append_edge(state.edges, {code_point, code_point, target});
      from = code_point + 1;
    }
    if (from <= kCodePointMax) append_edge(state.edges, {from, kCodePointMax, 0});
    dfa.states_.push_back(std::move(state));
  }
  return dfa;
}

CharDfa CharDfa::intersect(const CharDfa& other) const {
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> index;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto find = [&](uint32_t a, uint32_t b) {
    const auto [place, is_new] = index.try_emplace({a, b}, static_cast<uint32_t>(pairs.size()));
    if (is_new) pairs.emplace_back(a, b);
    if (pairs.size() > kStatesMax) refuse_size();
    return place->second;
  };
  CharDfa dfa;
  (void)find(0, 0);
  size_t done = 0;
  while (done < pairs.size()) {  // find() appends to it
    const auto pair = pairs[done++];
    const State& a = states_[pair.first];
    const State& b = other.states_[pair.second];
    State state;
    state.is_accepting = a.is_accepting && b.is_accepting;
    auto left = a.edges.begin();
    auto right = b.edges.begin();
    while (left != a.edges.end() && right != b.edges.end()) {
      const char32_t first = std::max(left->first, right->first);
      const char32_t last = std::min(left->last, right->last);
      if (first <= last) append_edge(state.edges, {first, last, find(left->target, right->target)});
      (left->last < right->last ? left : right)++;
    }
    dfa.states_.push_back(std::move(state));
  }
  dfa.trim();
  return dfa;
}

bool CharDfa::accepts(std::string_view text) const {
  uint32_t at = 0;
  for (const char32_t code_point : code_points(text)) {
    const std::optional<uint32_t> next = find_target(states_[at], code_point);
    if (!next) return false;
    at = *next;
  }
  return states_[at].is_accepting;
}

bool CharDfa::is_empty() const {
  return !states_.front().is_accepting && states_.front().edges.empty();
}

/// Drops the states from which nothing is accepted.
void CharDfa::trim() {
  std::vector<std::vector<uint32_t>> sources(states_.size());
  std::vector<uint32_t> pending;
  std::vector<bool> is_alive(states_.size(), false);
  const auto revive = [&](uint32_t index) {
    if (is_alive[index]) return;
    is_alive[index] = true;
    pending.push_back(index);
  };
  for (uint32_t i = 0; i < states_.size(); ++i) {
    for (const Edge& edge : states_[i].edges)
      sources[edge.target].push_back(i);
    if (states_[i].is_accepting) revive(i);
  }
  while (!pending.empty()) {
    const uint32_t index = pending.back();
    pending.pop_back();
    for (const uint32_t source : sources[index])
      revive(source);
  }
  std::vector<uint32_t> renamed(states_.size(), 0);
  std::vector<State> kept;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (!is_alive[i] && i > 0) continue;
    renamed[i] = static_cast<uint32_t>(kept.size());
    kept.push_back(std::move(states_[i]));
  }
  for (State& state : kept) {
    std::erase_if(state.edges, [&](const Edge& edge) { return !is_alive[edge.target]; });
    for (Edge& edge : state.edges)
      edge.target = renamed[edge.target];
  }
  states_ = std::move(kept);
}

}  // namespace tidepool
