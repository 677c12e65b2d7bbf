// Any schema: it is refused with an Error or becomes a grammar, and then random allowed bytes lead to a JSON text that
// can be read. Input: one byte that seeds the choices, the schema.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "text/grammar_matcher.h"
#include "text/json.h"

namespace {

using tidepool::CompiledGrammar;
using tidepool::Error;
using tidepool::ErrorCode;
using tidepool::GrammarMatcher;
using tidepool::kThinkEndByte;
using tidepool::MarkForm;
using tidepool::OutputGrammar;
using tidepool::TokenTrie;

constexpr int32_t kEnd = 256;

std::shared_ptr<const TokenTrie> bytes_trie() {
  std::vector<std::string> texts;
  texts.reserve(257);
  for (int byte = 0; byte < 256; ++byte)
    texts.emplace_back(byte < kThinkEndByte ? std::string(1, static_cast<char>(byte)) : "");
  texts.emplace_back();
  return std::make_shared<const TokenTrie>(std::move(texts), MarkForm::kControlToken);
}

void follow(const std::shared_ptr<const CompiledGrammar>& grammar, uint8_t seed) {
  constexpr size_t kBytesMax = 400;
  std::minstd_rand random(seed + 1U);
  GrammarMatcher matcher(grammar);
  std::vector<uint64_t> words(grammar->trie().word_count());
  std::string text;
  while (text.size() < kBytesMax) {
    matcher.fill_mask(words);
    std::vector<int32_t> ids;
    for (int32_t id = 0; id <= kEnd; ++id) {
      if ((words[static_cast<size_t>(id) / 64] >> (id % 64) & 1U) != 0) ids.push_back(id);
    }
    TIDEPOOL_CHECK(!ids.empty(), "a dead end");
    TIDEPOOL_CHECK((ids.back() == kEnd) == matcher.can_end(), "the end token is wrong");
    const int32_t id = ids.back() == kEnd ? kEnd : ids[random() % ids.size()];
    TIDEPOOL_CHECK(matcher.accept(id), "a masked token was refused");
    if (id == kEnd) {
      (void)tidepool::parse_json(text);
      return;
    }
    text += static_cast<char>(id);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<const TokenTrie> trie = bytes_trie();
  constexpr size_t kSizeMax = 4096;
  if (size < 2 || size > kSizeMax) return 0;
  OutputGrammar grammar;
  grammar.content = OutputGrammar::Content::kJson;
  std::shared_ptr<const CompiledGrammar> compiled;
  try {
    grammar.schema = tidepool::parse_json(std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
    compiled = std::make_shared<const CompiledGrammar>(tidepool::make_grammar(grammar, MarkForm::kControlToken), trie,
                                                       std::vector<int32_t>{kEnd});
  } catch (const Error& error) {
    const bool is_refusal =
        error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kResourceExhausted;
    TIDEPOOL_CHECK(is_refusal, error.what());
    return 0;
  }
  follow(compiled, data[0]);
  return 0;
}
