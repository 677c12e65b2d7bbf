#include "text/token_trie.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "text/dsml.h"
#include "text/unicode.h"

namespace tidepool {

namespace {

constexpr size_t kTokenBytesMax = std::numeric_limits<uint16_t>::max();

bool is_control_byte(char byte) {
  return static_cast<uint8_t>(byte) >= kThinkEndByte;
}

/// The node at the end of `path`; nothing when no token begins so.
std::optional<uint32_t> find_node(const TokenTrie::Tree& tree, std::string_view path) {
  uint32_t node = 0;
  auto end = static_cast<uint32_t>(tree.nodes.size());
  for (size_t i = 0; i < path.size(); ++i) {
    while (node < end && tree.nodes[node].byte != static_cast<uint8_t>(path[i]))
      node = tree.nodes[node].end;
    if (node == end) return std::nullopt;
    if (i + 1 == path.size()) return node;
    end = tree.nodes[node].end;
    ++node;
  }
  return std::nullopt;
}

}  // namespace

TextGuard::TextGuard(const std::vector<std::string_view>& texts) {
  for (const std::string_view text : texts) {
    starts_ |= uint64_t{1} << rests_.size();
    for (size_t i = 0; i < text.size(); ++i) {
      places_[static_cast<uint8_t>(text[i])] |= uint64_t{1} << rests_.size();
      rests_.emplace_back(text.substr(i + 1));
    }
    ends_ |= uint64_t{1} << (rests_.size() - 1);
  }
  TIDEPOOL_CHECK(rests_.size() <= 64, "all guarded texts together fit in a word");
}

std::optional<uint64_t> TextGuard::step(uint64_t state, uint8_t byte) const {
  // A text whose end was reached is not under way, so nothing shifts from one text into the next.
  const uint64_t next = ((state << 1U) | starts_) & places_[byte];
  if ((next & ends_) != 0) return std::nullopt;
  return next;
}

std::span<const int32_t> TokenTrie::Tree::tokens_at(uint32_t node) const {
  const size_t end = node + 1 < nodes.size() ? nodes[node + 1].token_begin : tokens.size();
  return std::span(tokens).subspan(nodes[node].token_begin, end - nodes[node].token_begin);
}

std::span<const int32_t> TokenTrie::Tree::tokens_below(uint32_t node) const {
  const size_t next = nodes[node].end;
  const size_t end = next < nodes.size() ? nodes[next].token_begin : tokens.size();
  return std::span(tokens).subspan(nodes[node].token_begin, end - nodes[node].token_begin);
}

TokenTrie::TokenTrie(std::vector<std::string> texts, MarkForm form)
    : texts_(std::move(texts)), form_(form), guard_(guarded_texts(form)), kinds_(texts_.size(), TokenKind::kText) {
  free_.assign(word_count(), 0);
  std::vector<int32_t> sorted;
  for (size_t i = 0; i < texts_.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string& text = texts_[i];
    const bool is_guarded = std::ranges::any_of(
        guarded_texts(form_), [&](std::string_view guarded) { return text.find(guarded) != std::string::npos; });
    if (text.empty() || text.size() > kTokenBytesMax) kinds_[i] = TokenKind::kOther;
    if (is_guarded) kinds_[i] = TokenKind::kNever;
    if (kinds_[i] == TokenKind::kText) sorted.push_back(id);
    const bool is_control = text.size() == 1 && is_control_byte(text.front());
    if (!is_control && !is_guarded) set_bit(free_, id);
  }
  std::ranges::sort(sorted, {}, [&](int32_t id) { return std::pair(text(id), id); });
  for (const PlainKind kind : {PlainKind::kJson, PlainKind::kRaw})
    make_plain(kind);
  for (const PlainKind kind : {PlainKind::kNone, PlainKind::kJson, PlainKind::kRaw})
    trees_[static_cast<size_t>(kind)] = make_tree(sorted, kind);
  for (const std::string& rest : guard_.rests())
    completing_.push_back(find_node(tree(PlainKind::kNone), rest));
}

TokenTrie TokenTrie::from_tokenizer(const Tokenizer& tokenizer) {
  const std::optional<int32_t> mark = tokenizer.find_added_token(dsml::kMark);
  const std::optional<int32_t> think_end = tokenizer.find_added_token(dsml::kThinkEnd);
  std::vector<std::string> texts(tokenizer.vocabulary_size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string_view text = tokenizer.token_bytes(id);
    if (id == mark) {
      texts[i] = static_cast<char>(kMarkByte);
    } else if (id == think_end) {
      texts[i] = static_cast<char>(kThinkEndByte);
    } else if (!tokenizer.is_added(id) && !tokenizer.is_special(id) && std::ranges::none_of(text, is_control_byte)) {
      texts[i] = text;
    }
  }
  return TokenTrie(std::move(texts), mark ? MarkForm::kControlToken : MarkForm::kText);
}

std::span<const int32_t> TokenTrie::tokens_of_byte(uint8_t byte) const {
  const std::optional<uint32_t> node =
      find_node(tree(PlainKind::kNone), std::string_view(reinterpret_cast<const char*>(&byte), 1));
  return node ? tree(PlainKind::kNone).tokens_at(*node) : std::span<const int32_t>();
}

std::span<const uint64_t> TokenTrie::plain(PlainKind kind, uint32_t chars_max) const {
  const size_t row = std::min(chars_max, kPlainCharsMax);
  return std::span(plain_[static_cast<size_t>(kind)]).subspan(row * word_count(), word_count());
}

std::span<const int32_t> TokenTrie::tokens_completing(size_t rest) const {
  if (!completing_[rest]) return {};
  return tree(PlainKind::kNone).tokens_below(*completing_[rest]);
}

size_t TokenTrie::bytes() const {
  size_t total = (free_.size() + plain_[1].size() + plain_[2].size()) * sizeof(uint64_t);
  for (const Tree& tree : trees_)
    total += tree.nodes.size() * sizeof(Node) + tree.tokens.size() * sizeof(int32_t);
  for (const std::string& text : texts_)
    total += sizeof(std::string) + (text.size() < sizeof(std::string) / 2 ? 0 : text.size());
  return total;
}

/// How many characters a token has if all of them are plain.
std::optional<uint32_t> TokenTrie::plain_chars(int32_t id, PlainKind kind) const {
  const std::string_view token = text(id);
  if (this->kind(id) != TokenKind::kText) return std::nullopt;
  if (form_ == MarkForm::kText && token.find(dsml::kBar) != std::string_view::npos) return std::nullopt;
  uint32_t count = 0;
  for (size_t at = 0; at < token.size(); ++count) {
    const Utf8Unit unit = read_utf8_unit(token, at);
    if (unit.kind != Utf8Unit::Kind::kCodePoint) return std::nullopt;
    const char32_t c = unit.code_point;
    const bool is_plain = kind == PlainKind::kJson ? c >= 0x20 && c != '"' && c != '\\' : c != 0 && c != '<';
    if (!is_plain) return std::nullopt;
    at += unit.length;
  }
  return count;
}

void TokenTrie::make_plain(PlainKind kind) {
  std::vector<uint64_t>& rows = plain_[static_cast<size_t>(kind)];
  rows.assign((kPlainCharsMax + 1) * word_count(), 0);
  for (size_t i = 0; i < texts_.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::optional<uint32_t> chars = plain_chars(id, kind);
    if (chars && *chars <= kPlainCharsMax) set_bit(std::span(rows).subspan(*chars * word_count(), word_count()), id);
  }
  for (size_t i = word_count(); i < rows.size(); ++i)
    rows[i] |= rows[i - word_count()];
}

TokenTrie::Tree TokenTrie::make_tree(const std::vector<int32_t>& sorted, PlainKind without) const {
  Tree tree;
  std::vector<uint32_t> path;  // nodes from the root to the token before
  std::string_view before;
  for (const int32_t id : sorted) {
    if (without != PlainKind::kNone) {
      const std::optional<uint32_t> chars = plain_chars(id, without);
      if (chars && *chars <= kPlainCharsMax) continue;
    }
    const std::string_view bytes = text(id);
    size_t common = 0;
    while (common < std::min(before.size(), bytes.size()) && before[common] == bytes[common])
      ++common;
    for (; path.size() > common; path.pop_back())
      tree.nodes[path.back()].end = static_cast<uint32_t>(tree.nodes.size());
    for (size_t i = common; i < bytes.size(); ++i) {
      path.push_back(static_cast<uint32_t>(tree.nodes.size()));
      tree.nodes.push_back(
          {0, static_cast<uint32_t>(tree.tokens.size()), static_cast<uint16_t>(i + 1), static_cast<uint8_t>(bytes[i])});
    }
    tree.tokens.push_back(id);
    before = bytes;
  }
  for (const uint32_t node : path)
    tree.nodes[node].end = static_cast<uint32_t>(tree.nodes.size());
  return tree;
}

}  // namespace tidepool
