#include "text/token_mask.h"

#include <algorithm>

namespace tidepool {

GrammarStacks::GrammarStacks() : stacks_(1) {}

uint32_t GrammarStacks::add(std::span<const Frame> frames) {
  Stack stack;
  stack.begin = static_cast<uint32_t>(frames_.size());
  stack.count = static_cast<uint32_t>(frames.size());
  stack.depth = GrammarAutomaton::kNever;
  for (const Frame& frame : frames)
    stack.depth = std::min(stack.depth, depth(frame.parent) + 1);
  frames_.insert(frames_.end(), frames.begin(), frames.end());
  stacks_.push_back(stack);
  return static_cast<uint32_t>(stacks_.size() - 1);
}

uint32_t GrammarStacks::push(uint32_t target, uint32_t parent) {
  const auto [known, is_new] = single_.try_emplace(uint64_t{target} << 32U | parent, 0);
  if (is_new) {
    const Frame frame{target, parent};
    known->second = add(std::span(&frame, 1));
  }
  return known->second;
}

uint32_t GrammarStacks::merge(uint32_t a, uint32_t b) {
  std::vector<Frame> united;
  std::ranges::set_union(frames(a), frames(b), std::back_inserter(united));
  if (united.size() == 1) return push(united.front().target, united.front().parent);
  const auto [known, is_new] = several_.try_emplace(united, 0);
  if (is_new) known->second = add(united);
  return known->second;
}

void GrammarStepper::add(GrammarThread thread, std::vector<GrammarThread>& out) {
  const GrammarAutomaton::State& state = automaton_->state(thread.state);
  if (state.height == GrammarAutomaton::kNever) return;
  const uint32_t needed = stacks_.depth(thread.stack) + state.height;
  if (needed > frames_max_) return;
  frames_needed_ = std::max(frames_needed_, needed);
  const bool goes_on = state.edge_count > 0 || state.call_count > 0 || thread.stack == GrammarStacks::kBottom;
  if (goes_on) {
    const auto known = std::ranges::find(out, thread.state, &GrammarThread::state);
    if (known == out.end()) {
      out.push_back(thread);
    } else if (known->stack == thread.stack) {
      return;
    } else {
      known->stack = stacks_.merge(known->stack, thread.stack);
    }
  }
  if (state.is_final) add_popped(thread.stack, out);
}

void GrammarStepper::add_popped(uint32_t stack, std::vector<GrammarThread>& out) {
  // By index: adding may make stacks, which moves the frames.
  const size_t count = stacks_.frames(stack).size();
  for (size_t i = 0; i < count; ++i) {
    const GrammarStacks::Frame frame = stacks_.frames(stack)[i];
    add({frame.target, frame.parent}, out);
  }
}

void GrammarStepper::step_thread(GrammarThread thread, uint8_t byte, std::vector<GrammarThread>& out) {
  const GrammarAutomaton::State& state = automaton_->state(thread.state);
  for (const GrammarAutomaton::Edge& edge : automaton_->edges(state)) {
    if (byte > edge.last) continue;
    if (byte >= edge.first) add({edge.target, thread.stack}, out);
    break;
  }
  for (const GrammarAutomaton::Call& call : automaton_->calls(state)) {
    const GrammarAutomaton::Rule& rule = automaton_->rule(call.rule);
    if (!rule.first.contains(byte)) continue;
    const uint32_t rest = automaton_->state(call.target).height;
    if (rest == GrammarAutomaton::kNever || stacks_.depth(thread.stack) + rest > frames_max_) continue;
    step_thread({rule.entry, stacks_.push(call.target, thread.stack)}, byte, out);
  }
}

void GrammarStepper::step(std::span<const GrammarThread> threads, uint8_t byte, std::vector<GrammarThread>& out) {
  out.clear();
  for (const GrammarThread& thread : threads)
    step_thread(thread, byte, out);
}

void StateMask::add_to(std::span<uint64_t> mask) const {
  for (size_t i = 0; i < words.size(); ++i)
    mask[i] |= words[i];
  for (const int32_t id : ids)
    set_bit(mask, id);
}

size_t StateMask::bytes() const {
  return sizeof(StateMask) + words.size() * sizeof(uint64_t) + ids.size() * sizeof(int32_t) +
         pop_nodes.size() * sizeof(uint32_t);
}

StateMask StateMaskCache::make(uint32_t state) const {
  StateMask mask;
  const PlainRun plain = automaton_.state(state).plain;
  const bool is_plain = plain.kind != PlainKind::kNone;
  if (is_plain) {
    const std::span<const uint64_t> tokens = trie_.plain(plain.kind, plain.chars_max);
    mask.words.assign(tokens.begin(), tokens.end());
    mask.tree = plain.kind;
  }
  // Beyond any depth that matters, but small enough to add to. The frames below are not known here.
  constexpr uint32_t kNoLimit = GrammarAutomaton::kNever / 4;
  GrammarStepper stepper(automaton_, kNoLimit);
  const TokenTrie::Tree& tree = trie_.tree(mask.tree);
  TrieWalker walker;
  const GrammarThread start{state, GrammarStacks::kBottom};
  walker.walk(tree, 0, static_cast<uint32_t>(tree.nodes.size()), std::span(&start, 1), stepper,
              [&](uint32_t node, const std::vector<GrammarThread>& threads) {
                const std::span<const int32_t> tokens = tree.tokens_at(node);
                mask.ids.insert(mask.ids.end(), tokens.begin(), tokens.end());
                const bool may_be_over = std::ranges::any_of(threads, [&](const GrammarThread& thread) {
                  return thread.stack == GrammarStacks::kBottom && automaton_.state(thread.state).is_final;
                });
                if (may_be_over && tree.nodes[node].end > node + 1) mask.pop_nodes.push_back(node);
              });
  // Plain tokens were not walked: they may open the string and a character in it.
  const uint32_t plain_frames = is_plain ? automaton_.state(state).height + 3 : 0;
  mask.frames_needed = std::max(stepper.frames_needed(), plain_frames);
  constexpr size_t kIdsMax = 1024;  // as many bytes as the words of a vocabulary of 32,768
  if (mask.ids.size() > kIdsMax || is_plain) {
    mask.words.resize(trie_.word_count());
    for (const int32_t id : mask.ids)
      set_bit(mask.words, id);
    mask.ids.clear();
  }
  mask.ids.shrink_to_fit();
  mask.pop_nodes.shrink_to_fit();
  return mask;
}

std::shared_ptr<const StateMask> StateMaskCache::get(uint32_t state) {
  {
    const std::scoped_lock lock(mutex_);
    const auto known = masks_.find(state);
    if (known != masks_.end()) return known->second;
  }
  auto mask = std::make_shared<const StateMask>(make(state));
  const std::scoped_lock lock(mutex_);
  const auto [known, is_new] = masks_.try_emplace(state, mask);
  if (!is_new) return known->second;
  bytes_ += mask->bytes();
  if (bytes_ > kBytesMax) {
    masks_.clear();
    bytes_ = 0;
  }
  return mask;
}

size_t StateMaskCache::bytes() const {
  const std::scoped_lock lock(mutex_);
  return bytes_;
}

}  // namespace tidepool
