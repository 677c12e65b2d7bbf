#include "text/engram_token_map.h"

#include <unordered_map>
#include <utility>

#include "text/unicode.h"

namespace tidepool {
namespace {

bool is_folded_space(char32_t code_point) {
  return code_point == ' ' || code_point == '\t' || code_point == '\r' || code_point == '\n';
}

/// NFD of NFKC is NFKD: NFKC only composes what NFKD gave, and NFD takes that apart again. NFKD in turn differs from
/// the decompositions one by one only in the order of combining marks, all of which are deleted. (The script that
/// writes the Unicode tables checks both for every character.)
std::u32string decompose_without_marks(std::string_view text) {
  std::u32string decomposed;
  for (size_t position = 0; position < text.size();) {
    const Utf8Unit unit = read_utf8_unit(text, position);
    append_compatibility_decomposition(unit.code_point, decomposed);
    position += unit.length;
  }
  std::erase_if(decomposed, [](char32_t c) { return unicode_class(c) == UnicodeClass::kMark; });
  return decomposed;
}

std::u32string_view trim(std::u32string_view text) {
  const auto is_space = [](char32_t c) { return unicode_class(c) == UnicodeClass::kSpace; };
  while (!text.empty() && is_space(text.front()))
    text.remove_prefix(1);
  while (!text.empty() && is_space(text.back()))
    text.remove_suffix(1);
  return text;
}

}  // namespace

EngramTokenMap make_engram_token_map(const Tokenizer& tokenizer) {
  EngramTokenMap map;
  std::unordered_map<std::string, int32_t> number_of_key;
  for (size_t index = 0; index < tokenizer.vocabulary_size(); ++index) {
    const auto id = static_cast<int32_t>(index);
    std::string text = replace_invalid_utf8(tokenizer.token_bytes(id));
    std::string key;
    if (text.find(kReplacementText) != std::string::npos) {
      key = tokenizer.token_letters(id);
    } else {
      key = normalise_for_engram(text);
      if (key.empty()) key = std::move(text);
    }
    const auto [entry, is_new] = number_of_key.emplace(std::move(key), map.compressed_vocabulary);
    if (is_new) ++map.compressed_vocabulary;
    map.compressed_ids.push_back(entry->second);
  }
  return map;
}

std::string normalise_for_engram(std::string_view text) {
  std::u32string folded;
  for (const char32_t code_point : decompose_without_marks(text)) {
    if (!is_folded_space(code_point)) {
      folded += to_lower(code_point);
    } else if (folded.empty() || folded.back() != ' ') {
      folded += ' ';
    }
  }
  std::string out;
  for (const char32_t code_point : folded == U" " ? std::u32string_view(folded) : trim(folded))
    append_utf8(code_point, out);
  return out;
}

}  // namespace tidepool
