#include "text/grammar_matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tidepool {

namespace {

void clear_bit(std::span<uint64_t> words, int32_t id) {
  words[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (static_cast<size_t>(id) % 64));
}

}  // namespace

CompiledGrammar::CompiledGrammar(MadeGrammar made, std::shared_ptr<const TokenTrie> trie, std::vector<int32_t> end_ids)
    : made_(std::move(made)), trie_(std::move(trie)), end_ids_(std::move(end_ids)), masks_(made_.automaton, *trie_) {
  std::erase_if(end_ids_, [&](int32_t id) { return id < 0 || static_cast<size_t>(id) >= trie_->vocabulary_size(); });
}

std::shared_ptr<const CompiledGrammar> GrammarCache::get(const OutputGrammar& grammar) {
  std::string key = grammar_key(grammar);
  {
    const std::scoped_lock lock(mutex_);
    const auto known = index_.find(key);
    if (known != index_.end()) {
      entries_.splice(entries_.begin(), entries_, known->second);
      return known->second->grammar;
    }
  }
  // Not under the lock: it may take long, and two that make the same do no harm.
  auto made = std::make_shared<const CompiledGrammar>(make_grammar(grammar, trie_->mark_form()), trie_, end_ids_);
  const std::scoped_lock lock(mutex_);
  const auto known = index_.find(key);
  if (known != index_.end()) return known->second->grammar;
  entries_.push_front({key, made});
  index_.emplace(std::move(key), entries_.begin());
  drop_oldest();
  return made;
}

/// Masks grow after a grammar came in, so all sizes are asked for anew. The newest one stays.
void GrammarCache::drop_oldest() {
  size_t bytes = 0;
  size_t kept = 0;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    bytes += entry->grammar->bytes() + entry->key.size();
    if (kept > 0 && (kept == kGrammarsMax || bytes > kBytesMax)) {
      index_.erase(entry->key);
      entry = entries_.erase(entry);
    } else {
      ++kept;
      ++entry;
    }
  }
}

size_t GrammarCache::size() const {
  const std::scoped_lock lock(mutex_);
  return entries_.size();
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar)
    : grammar_(std::move(grammar)), stepper_(grammar_->automaton()) {
  stepper_.add({grammar_->automaton().start(), GrammarStacks::kBottom}, threads_);
}

bool GrammarMatcher::is_end(int32_t id) const {
  return std::ranges::find(grammar_->end_ids(), id) != grammar_->end_ids().end();
}

bool GrammarMatcher::is_free() const {
  return std::ranges::any_of(
      threads_, [&](const GrammarThread& thread) { return grammar_->automaton().state(thread.state).is_free; });
}

bool GrammarMatcher::can_end() const {
  return std::ranges::any_of(threads_, [&](const GrammarThread& thread) {
    return thread.stack == GrammarStacks::kBottom && grammar_->automaton().state(thread.state).is_final;
  });
}

void GrammarMatcher::remember() {
  history_.push_back({static_cast<uint32_t>(threads_.size()), has_ended_, guard_});
  past_threads_.insert(past_threads_.end(), threads_.begin(), threads_.end());
}

void GrammarMatcher::rollback(size_t count) {
  TIDEPOOL_CHECK(count <= history_.size(), "only tokens that were taken can be taken back");
  for (; count > 0; --count) {
    const Past past = history_.back();
    history_.pop_back();
    const auto begin = past_threads_.end() - past.thread_count;
    threads_.assign(begin, past_threads_.end());
    past_threads_.erase(begin, past_threads_.end());
    guard_ = past.guard;
    has_ended_ = past.has_ended;
  }
}

/// Takes bytes; on failure the members are half changed.
bool GrammarMatcher::take(std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    stepper_.step(threads_, byte, next_);
    std::swap(threads_, next_);
    if (threads_.empty()) return false;
    const std::optional<uint64_t> guard = grammar_->trie().guard().step(guard_, byte);
    if (!guard) return false;
    guard_ = *guard;
  }
  return true;
}

bool GrammarMatcher::accept_text(std::string_view text) {
  if (has_ended_) return false;
  remember();
  if (take(text)) return true;
  rollback(1);
  return false;
}

bool GrammarMatcher::accept(int32_t id) {
  if (id < 0 || static_cast<size_t>(id) >= grammar_->trie().vocabulary_size()) return false;
  if (is_end(id)) {
    if (!has_ended_ && !can_end()) return false;
    remember();
    has_ended_ = true;
    return true;
  }
  if (has_ended_) return false;
  switch (grammar_->trie().kind(id)) {
    case TokenTrie::TokenKind::kNever: return false;
    case TokenTrie::TokenKind::kOther:
      if (!is_free()) return false;
      remember();
      return true;
    case TokenTrie::TokenKind::kText: return accept_text(grammar_->trie().text(id));
  }
  return false;
}

void GrammarMatcher::fill_mask(std::span<uint64_t> words) {
  TIDEPOOL_CHECK(words.size() == grammar_->trie().word_count(), "a mask has a bit for each token");
  std::ranges::fill(words, uint64_t{0});
  if (!has_ended_) {
    if (is_free()) {
      const std::span<const uint64_t> free = grammar_->trie().free_tokens();
      std::ranges::copy(free, words.begin());
      add_byte_tokens(kMarkByte, words);
      add_byte_tokens(kThinkEndByte, words);
    } else {
      for (const GrammarThread& thread : threads_)
        add_thread_mask(thread, words);
    }
    remove_guarded(words);
  }
  const bool may_end = has_ended_ || can_end();
  for (const int32_t id : grammar_->end_ids())
    may_end ? set_bit(words, id) : clear_bit(words, id);
}

/// The tokens that are one control byte, if it may come.
void GrammarMatcher::add_byte_tokens(uint8_t byte, std::span<uint64_t> words) {
  stepper_.step(threads_, byte, next_);
  if (next_.empty()) return;
  for (const int32_t id : grammar_->trie().tokens_of_byte(byte))
    set_bit(words, id);
}

void GrammarMatcher::add_thread_mask(GrammarThread thread, std::span<uint64_t> words) {
  const TokenTrie& trie = grammar_->trie();
  const std::shared_ptr<const StateMask> mask = grammar_->state_mask(thread.state);
  const auto add_tokens = [words](const TokenTrie::Tree& tree, uint32_t first, uint32_t last,
                                  std::span<const GrammarThread> threads, GrammarStepper& stepper, TrieWalker& walker) {
    walker.walk(tree, first, last, threads, stepper, [&](uint32_t node, const std::vector<GrammarThread>&) {
      for (const int32_t id : tree.tokens_at(node))
        set_bit(words, id);
    });
  };
  if (stepper_.stacks().depth(thread.stack) + mask->frames_needed > GrammarAutomaton::kFramesMax) {
    // Near the limit of frames the mask would promise too much.
    const TokenTrie::Tree& tree = trie.tree(PlainKind::kNone);
    add_tokens(tree, 0, static_cast<uint32_t>(tree.nodes.size()), std::span(&thread, 1), stepper_, walker_);
    return;
  }
  mask->add_to(words);
  popped_.clear();
  stepper_.add_popped(thread.stack, popped_);
  if (popped_.empty()) return;
  const TokenTrie::Tree& tree = trie.tree(mask->tree);
  for (const uint32_t node : mask->pop_nodes)
    add_tokens(tree, node + 1, tree.nodes[node].end, popped_, stepper_, walker_);
}

void GrammarMatcher::remove_guarded(std::span<uint64_t> words) const {
  const TextGuard& guard = grammar_->trie().guard();
  for (size_t i = 0; i < guard.rests().size(); ++i) {
    if ((guard_ >> i & 1U) == 0) continue;
    for (const int32_t id : grammar_->trie().tokens_completing(i))
      clear_bit(words, id);
  }
}

}  // namespace tidepool
