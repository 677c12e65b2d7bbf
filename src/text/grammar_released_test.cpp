#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/dsml.h"
#include "text/grammar_matcher.h"
#include "text/grammar_test_support.h"
#include "text/tokenizer_released.h"

namespace tidepool {
namespace {

/// Grammars with the vocabulary of the released model.
class GrammarReleasedTest : public ReleasedTokenizerTest {
 protected:
  static std::shared_ptr<const TokenTrie> trie() {
    static const auto shared = std::make_shared<const TokenTrie>(TokenTrie::from_tokenizer(tokenizer()));
    return shared;
  }

  /// Takes the tokens in which the tokenizer writes `text`; each must be in the mask.
  static void expect_tokens(GrammarMatcher& matcher, std::string_view text) {
    std::vector<uint64_t> words(trie()->word_count());
    for (const int32_t id : tokenizer().encode(text)) {
      matcher.fill_mask(words);
      ASSERT_TRUE(has_bit(words, id)) << id << " in " << text;
      ASSERT_TRUE(matcher.accept(id)) << id << " in " << text;
    }
  }

  static OutputGrammar tool() {
    OutputGrammar grammar;
    grammar.content = OutputGrammar::Content::kNone;
    grammar.calls = OutputGrammar::Calls::kRequired;
    grammar.tools = {{"run", parse_json(R"({"properties": {"command": {"type": "string"}, "limit": {"type": "integer"},
        "env": {"type": "object", "additionalProperties": {"type": "string"}}}, "required": ["command"]})"),
                      true, "tools"}};
    return grammar;
  }
};

TEST_F(GrammarReleasedTest, CallsAreTakenAsTheTokenizerWritesThem) {
  OutputGrammar grammar = tool();
  grammar.start = OutputStart::kReasoning;
  GrammarCache cache(trie(), {1});
  GrammarMatcher matcher(cache.get(grammar));
  EXPECT_EQ(trie()->mark_form(), MarkForm::kControlToken);
  expect_tokens(
      matcher,
      "First the files.\nThen </b>…</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"run\">\n"
      "<｜DSML｜ parameter name=\"command\" string=\"true\">grep -rn '<a>' . 2>&1 | wc -l\n</"
      "｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"limit\" string=\"false\">-20</｜DSML｜ parameter>\n"
      "<｜DSML｜ parameter name=\"env\" string=\"false\">{\"LANG\": \"日本\", \"A\": \"\\n\"}</｜DSML｜ parameter>\n"
      "</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  EXPECT_TRUE(matcher.can_end());
  EXPECT_TRUE(matcher.accept(1));
}

TEST_F(GrammarReleasedTest, MarkCannotBeSpelledWithOtherTokens) {
  GrammarCache cache(trie(), {1});
  GrammarMatcher matcher(cache.get(tool()));
  expect_tokens(matcher, "\n\n<");
  std::vector<uint64_t> words(trie()->word_count());
  matcher.fill_mask(words);
  const int32_t mark = *tokenizer().find_added_token(dsml::kMark);
  for (size_t id = 0; id < tokenizer().vocabulary_size(); ++id)
    ASSERT_EQ(has_bit(words, static_cast<int32_t>(id)), static_cast<int32_t>(id) == mark) << id;
}

TEST_F(GrammarReleasedTest, MasksEqualBruteForceAlongAnAnswer) {
  GrammarCache cache(trie(), {1});
  GrammarMatcher matcher(cache.get(json_grammar(R"({"type": "object", "properties": {"name": {"type": "string",
      "maxLength": 12}, "n": {"type": ["number", "null"]}, "tags": {"type": "array", "items": {"enum": ["a", "ab"]}}},
      "required": ["name"]})")));
  std::vector<uint64_t> words(trie()->word_count());
  for (const int32_t id : tokenizer().encode("{\n  \"name\": \"Zoë \\u00e9 x\",\"n\": 1.5e3, \"tags\": [\"ab\"]}")) {
    matcher.fill_mask(words);
    // A stride coprime to the size of the vocabulary, from another start at each token.
    for (size_t other = matcher.accepted_count() % 7; other < trie()->vocabulary_size(); other += 7) {
      const bool is_taken = matcher.accept(static_cast<int32_t>(other));
      if (is_taken) matcher.rollback(1);
      ASSERT_EQ(has_bit(words, static_cast<int32_t>(other)), is_taken) << other;
    }
    ASSERT_TRUE(matcher.accept(id));
  }
  EXPECT_TRUE(matcher.can_end());
}

}  // namespace
}  // namespace tidepool
