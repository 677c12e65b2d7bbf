#include "text/grammar_matcher.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/grammar_test_support.h"

namespace tidepool {
namespace {

/// Every bit of the mask against taking the token on a copy.
void check_mask(GrammarMatcher& matcher, std::vector<uint64_t>& words) {
  matcher.fill_mask(words);
  for (size_t i = 0; i < words.size() * 64; ++i) {
    const auto id = static_cast<int32_t>(i);
    GrammarMatcher copy = matcher;
    ASSERT_EQ(has_bit(words, id), copy.accept(id)) << "token " << id << " behind " << matcher.accepted_count();
  }
}

/// Follows random outputs; checks the mask at every `stride`th token. Returns the text, cut after some thousand tokens.
std::string follow(const std::shared_ptr<const CompiledGrammar>& grammar, uint32_t seed, size_t stride) {
  constexpr size_t kTokensMax = 2000;
  GrammarMatcher matcher(grammar);
  RandomOutput output(seed);
  std::vector<uint64_t> words(grammar->trie().word_count());
  std::string text;
  while (matcher.accepted_count() < kTokensMax) {
    if (stride > 0 && matcher.accepted_count() % stride == 0) {
      check_mask(matcher, words);
    } else {
      matcher.fill_mask(words);
    }
    const int32_t id = output.draw(words, matcher.accepted_count());
    EXPECT_TRUE(matcher.accept(id));
    if (matcher.has_ended()) return text;
    text += grammar->trie().text(id);
  }
  return text;
}

/// 1,000 random schemas and outputs: what comes out is valid, by an interpreter that shares nothing with the grammar.
TEST(GrammarMatcher, RandomOutputsOfRandomSchemasAreValid) {
  for (uint32_t trial = 0; trial < 1000; ++trial) {
    const Json schema = RandomSchema(trial).document();
    OutputGrammar grammar;
    grammar.content = OutputGrammar::Content::kJson;
    grammar.schema = schema;
    const std::string text = follow(vocabulary().compile(grammar), trial, 0);
    SCOPED_TRACE(write_json(schema) + "\n" + text);
    ASSERT_TRUE(SchemaOracle(schema).is_valid(parse_json(text)));
  }
}

TEST(GrammarMatcher, MasksEqualBruteForce) {
  for (uint32_t trial = 0; trial < 60; ++trial) {
    OutputGrammar grammar;
    grammar.content = OutputGrammar::Content::kJson;
    grammar.schema = RandomSchema(trial + 5000).document();
    if (trial % 3 == 0) {
      grammar.calls = OutputGrammar::Calls::kPossible;
      grammar.content = trial % 2 == 0 ? OutputGrammar::Content::kFree : OutputGrammar::Content::kJson;
      grammar.tools = {{"f", parse_json(R"({"type": "object", "properties": {"s": {"type": "string", "maxLength": 9},
          "o": {}}, "additionalProperties": true})"),
                        true, "tools"}};
    }
    if (trial % 5 == 0) grammar.start = OutputStart::kReasoning;
    const TestVocabulary plain(MarkForm::kText);
    const TestVocabulary& chosen = trial % 4 == 0 ? plain : vocabulary();
    (void)follow(chosen.compile(grammar), trial, 4);
  }
}

TEST(GrammarMatcher, CountedStringsHaveExactMasks) {
  for (const char* schema :
       {R"({"type": "string", "maxLength": 2})", R"({"type": "string", "minLength": 3, "maxLength": 50})",
        R"({"type": "string", "minLength": 40})", R"({"type": "object"})"}) {
    for (uint32_t seed = 0; seed < 4; ++seed)
      (void)follow(vocabulary().compile(json_grammar(schema)), seed, 1);
  }
}

TEST(GrammarMatcher, RollbackGoesBackExactly) {
  const std::shared_ptr<const CompiledGrammar> grammar =
      vocabulary().compile(json_grammar(R"({"type": "object", "properties": {"a": {}, "b": {"type": "string"}}})"));
  std::mt19937 random(3);
  std::vector<uint64_t> words(grammar->trie().word_count());
  std::vector<uint64_t> fresh_words(words.size());
  for (uint32_t trial = 0; trial < 20; ++trial) {
    GrammarMatcher matcher(grammar);
    RandomOutput output(trial);
    std::vector<int32_t> ids;
    for (int step = 0; step < 120; ++step) {
      matcher.fill_mask(words);
      ids.push_back(output.draw(words, ids.size()));
      ASSERT_TRUE(matcher.accept(ids.back()));
      if (random() % 3 != 0) continue;
      const size_t count = random() % (std::min<size_t>(ids.size(), 6) + 1);
      matcher.rollback(count);
      ids.resize(ids.size() - count);
      GrammarMatcher fresh(grammar);
      for (const int32_t id : ids)
        ASSERT_TRUE(fresh.accept(id));
      matcher.fill_mask(words);
      fresh.fill_mask(fresh_words);
      ASSERT_EQ(words, fresh_words);
    }
  }
}

TEST(GrammarMatcher, ReasoningIsFreeUpToItsEnd) {
  OutputGrammar wanted = json_grammar(R"({"const": 12})");
  wanted.start = OutputStart::kReasoning;
  GrammarMatcher matcher(vocabulary().compile(wanted));
  std::vector<uint64_t> words(matcher.grammar().trie().word_count());
  matcher.fill_mask(words);
  EXPECT_TRUE(has_bit(words, vocabulary().think_end));
  EXPECT_TRUE(has_bit(words, vocabulary().other));
  EXPECT_TRUE(has_bit(words, 0xC3));  // half a character
  EXPECT_FALSE(has_bit(words, vocabulary().end));
  EXPECT_FALSE(has_bit(words, vocabulary().mark));
  // A draft across the border is taken back token by token.
  ASSERT_TRUE(matcher.accept('x'));
  ASSERT_TRUE(matcher.accept(vocabulary().think_end));
  EXPECT_FALSE(matcher.accept('x'));
  ASSERT_TRUE(matcher.accept('1'));
  ASSERT_TRUE(matcher.accept('2'));
  EXPECT_TRUE(matcher.can_end());
  matcher.rollback(3);
  EXPECT_FALSE(matcher.can_end());
  ASSERT_TRUE(matcher.accept('y'));
  // Nor can the border be spelled, which readers of the text would take for it.
  ASSERT_TRUE(matcher.accept_text("</thi"));
  EXPECT_FALSE(matcher.accept_text("nk>"));
  EXPECT_TRUE(matcher.accept_text("nk "));
}

TEST(GrammarMatcher, EndTokensAreAllowedExactlyAtAnEnd) {
  GrammarMatcher matcher(vocabulary().compile(json_grammar(R"({"enum": [1, 12]})")));
  EXPECT_FALSE(matcher.accept(vocabulary().end));
  ASSERT_TRUE(matcher.accept('1'));
  EXPECT_TRUE(matcher.can_end());
  ASSERT_TRUE(matcher.accept(vocabulary().end));
  EXPECT_TRUE(matcher.has_ended());
  EXPECT_FALSE(matcher.accept('2'));
  std::vector<uint64_t> words(matcher.grammar().trie().word_count());
  check_mask(matcher, words);
  matcher.rollback(1);
  EXPECT_TRUE(matcher.accept('2'));
  EXPECT_FALSE(matcher.accept(-1));
  EXPECT_FALSE(matcher.accept(100'000));
}

TEST(GrammarMatcher, CopiesAreIndependent) {
  GrammarMatcher first(vocabulary().compile(json_grammar(R"({"type": "array", "items": {"type": "array"}})")));
  ASSERT_TRUE(first.accept_text("[["));
  GrammarMatcher second = first;
  ASSERT_TRUE(first.accept_text("]]"));
  ASSERT_TRUE(second.accept_text("[{\"a\":["));
  EXPECT_TRUE(first.can_end());
  EXPECT_FALSE(second.can_end());
  EXPECT_TRUE(second.accept_text("]}]]]"));
  EXPECT_TRUE(second.can_end());
}

TEST(GrammarCache, SharesEqualGrammarsAndForgetsTheOldest) {
  GrammarCache cache(vocabulary().trie, {vocabulary().end});
  const auto grammar_of = [](size_t number) { return json_grammar(R"({"const": )" + std::to_string(number) + "}"); };
  const std::shared_ptr<const CompiledGrammar> first = cache.get(grammar_of(0));
  EXPECT_EQ(cache.get(grammar_of(0)), first);
  for (size_t i = 1; i < GrammarCache::kGrammarsMax; ++i)
    EXPECT_NE(cache.get(grammar_of(i)), first);
  EXPECT_EQ(cache.get(grammar_of(0)), first);
  (void)cache.get(grammar_of(GrammarCache::kGrammarsMax));
  EXPECT_EQ(cache.size(), GrammarCache::kGrammarsMax);
  EXPECT_EQ(cache.get(grammar_of(0)), first);  // used last but one; number 1 went
  EXPECT_THROW((void)cache.get(json_grammar(R"({"not": {}})")), Error);
  EXPECT_EQ(cache.size(), GrammarCache::kGrammarsMax);
}

}  // namespace
}  // namespace tidepool
