#include "text/grammar_matcher.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace tidepool {
namespace {

TEST(GrammarSmoke, Works) {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte)
    texts.emplace_back(1, static_cast<char>(byte));
  texts.emplace_back("");
  auto trie = std::make_shared<const TokenTrie>(texts, MarkForm::kControlToken);
  GrammarCache cache(trie, {256});
  OutputGrammar grammar;
  grammar.content = OutputGrammar::Content::kJson;
  grammar.schema = parse_json(
      R"({"type":"object","properties":{"a":{"type":"integer","minimum":3,"maximum":120},"b":{"type":"string","maxLength":3}},"required":["a"]})");
  GrammarMatcher m(cache.get(grammar));
  const auto ok = [&](std::string_view t) {
    GrammarMatcher c = m;
    return c.accept_text(t) && c.can_end();
  };
  EXPECT_TRUE(ok(R"({"a":3})"));
  EXPECT_TRUE(ok(R"({"a": 120, "b": "xyz"})"));
  EXPECT_FALSE(ok(R"({"a": 121, "b": "xyz"})"));
  EXPECT_FALSE(ok(R"({"a": 12, "b": "xyzz"})"));
  EXPECT_FALSE(ok(R"({})"));
  EXPECT_TRUE(ok("{\n  \"a\": 120,\n  \"b\": \"x\\n\\u00e9\"\n}"));
}

}  // namespace
}  // namespace tidepool
