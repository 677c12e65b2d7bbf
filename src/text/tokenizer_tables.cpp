#include "text/tokenizer_tables.h"

#include <algorithm>

#include "base/check.h"

namespace tidepool {

void AddedTokenMatcher::add(std::string_view content, int32_t id) {
  TIDEPOOL_CHECK(!content.empty() && content.size() <= kAddedTokenBytesMax, "length of an added token");
  entries_.push_back({std::string(content), id});
  if (first_bytes_.find(content.front()) == std::string::npos) first_bytes_ += content.front();
}

void AddedTokenMatcher::finish() {
  std::ranges::sort(entries_, {}, &Entry::content);
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text, size_t from) const {
  for (size_t begin = text.find_first_of(first_bytes_, from); begin != std::string_view::npos;
       begin = text.find_first_of(first_bytes_, begin + 1)) {
    const Entry* entry = longest_at(text, begin);
    if (entry) return Match{begin, entry->content.size(), entry->id};
  }
  return std::nullopt;
}

std::optional<int32_t> AddedTokenMatcher::find_exactly(std::string_view content) const {
  const auto found = std::ranges::lower_bound(entries_, content, {}, &Entry::content);
  if (found == entries_.end() || found->content != content) return std::nullopt;
  return found->id;
}

const AddedTokenMatcher::Entry* AddedTokenMatcher::longest_at(std::string_view text, size_t begin) const {
  // The contents that share the first `depth` bytes with the text are neighbours; the range narrows byte by byte. One
  // that ends at this depth is the first of its range.
  auto first = entries_.begin();
  auto last = entries_.end();
  const Entry* longest = nullptr;
  for (size_t depth = 0; begin + depth < text.size() && first != last; ++depth) {
    const auto byte = static_cast<uint8_t>(text[begin + depth]);
    const auto byte_at_depth = [depth](const Entry& entry) { return static_cast<uint8_t>(entry.content[depth]); };
    first = std::ranges::lower_bound(first, last, byte, {}, byte_at_depth);
    last = std::ranges::upper_bound(first, last, byte, {}, byte_at_depth);
    if (first != last && first->content.size() == depth + 1) {
      longest = &*first;
      ++first;
    }
  }
  return longest;
}

}  // namespace tidepool
