#include "train/bpe_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "text/chat_encoding_ids.h"
#include "text/chat_request.h"
#include "text/tokenizer.h"
#include "text/tokenizer_control.h"

namespace tidepool {
namespace {

using Pieces = std::vector<std::pair<std::string, uint64_t>>;

/// The same by counting all pairs anew for every token.
BpeVocabulary train_slowly(const Pieces& pieces, const BpeTrainerOptions& options) {
  BpeVocabulary vocabulary;
  vocabulary.tokens.reserve(options.token_count);
  for (int byte = 0; byte < 256; ++byte)
    vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  std::vector<std::vector<int32_t>> words;
  for (const auto& [bytes, count] : pieces) {
    words.emplace_back();
    for (const char byte : bytes)
      words.back().push_back(static_cast<uint8_t>(byte));
  }
  const auto bytes_of = [&](int32_t left, int32_t right) {
    return vocabulary.tokens[static_cast<size_t>(left)] + vocabulary.tokens[static_cast<size_t>(right)];
  };
  while (vocabulary.tokens.size() < options.token_count) {
    std::map<std::pair<int32_t, int32_t>, uint64_t> counts;
    for (size_t w = 0; w < words.size(); ++w) {
      for (size_t i = 0; i + 1 < words[w].size(); ++i)
        counts[{words[w][i], words[w][i + 1]}] += pieces[w].second;
    }
    std::pair<int32_t, int32_t> best;
    uint64_t best_count = 1;
    for (const auto& [pair, count] : counts) {
      const std::string merged = bytes_of(pair.first, pair.second);
      const bool is_known =
          std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), merged) != vocabulary.tokens.end();
      if (count > best_count && !is_known && merged.size() <= options.token_bytes_max) {
        best = pair;
        best_count = count;
      }
    }
    if (best_count == 1) break;
    const auto merged = static_cast<int32_t>(vocabulary.tokens.size());
    vocabulary.tokens.push_back(bytes_of(best.first, best.second));
    vocabulary.merges.push_back({best.first, best.second});
    for (std::vector<int32_t>& word : words) {
      std::vector<int32_t> out;
      for (size_t i = 0; i < word.size(); ++i) {
        const bool is_pair = i + 1 < word.size() && word[i] == best.first && word[i + 1] == best.second;
        out.push_back(is_pair ? merged : word[i]);
        if (is_pair) ++i;
      }
      word = out;
    }
  }
  return vocabulary;
}

/// Words of few letters, so that pairs tie, overlap and spell tokens in several ways.
std::string random_text(uint32_t seed, size_t words) {
  std::mt19937 random(seed);
  std::string text;
  for (size_t w = 0; w < words; ++w) {
    for (auto letters = 1 + random() % 9; letters > 0; --letters)
      text += static_cast<char>('a' + random() % (1 + random() % 4));
    text += random() % 8 == 0 ? ".\n" : " ";
  }
  return text;
}

Pieces count(std::string_view text) {
  PieceCounts counts;
  counts.add(text);
  return counts.sorted();
}

Tokenizer make_tokenizer(std::string_view text, size_t token_count) {
  const BpeVocabulary vocabulary = train_bpe(count(text), {.token_count = token_count});
  return Tokenizer::parse(write_tokenizer_json(vocabulary), "trained");
}

TEST(BpeTrainer, LearnsTheSameAsCountingAnewForEveryToken) {
  for (uint32_t seed = 0; seed < 8; ++seed) {
    const Pieces pieces = count(random_text(seed, 300));
    const BpeTrainerOptions options{.token_count = 330, .token_bytes_max = 5 + seed % 3};
    const BpeVocabulary fast = train_bpe(pieces, options);
    const BpeVocabulary slow = train_slowly(pieces, options);
    EXPECT_EQ(fast.tokens, slow.tokens) << "seed " << seed;
    EXPECT_EQ(fast.merges, slow.merges) << "seed " << seed;
  }
}

TEST(BpeTrainer, ATextInAnyOrderGivesTheSameVocabulary) {
  const std::string first = random_text(1, 200);
  const std::string second = random_text(2, 200);
  PieceCounts forward;
  forward.add(first);
  forward.add(second);
  PieceCounts backward;
  backward.add(second);
  backward.add(first);
  EXPECT_EQ(forward.sorted(), backward.sorted());
}

TEST(BpeTrainer, EveryTokenIsMadeOnceAndWithinTheLength) {
  const BpeVocabulary vocabulary = train_bpe(count(random_text(3, 2000)), {.token_count = 600, .token_bytes_max = 6});
  EXPECT_EQ(vocabulary.tokens.size(), 600);
  EXPECT_EQ(vocabulary.merges.size(), 600 - 256);
  EXPECT_EQ(std::set<std::string>(vocabulary.tokens.begin(), vocabulary.tokens.end()).size(), 600);
  for (size_t i = 0; i < vocabulary.merges.size(); ++i) {
    const auto [left, right] = vocabulary.merges[i];
    EXPECT_EQ(vocabulary.tokens[256 + i],
              vocabulary.tokens[static_cast<size_t>(left)] + vocabulary.tokens[static_cast<size_t>(right)]);
    EXPECT_LE(vocabulary.tokens[256 + i].size(), 6);
  }
}

TEST(BpeTrainer, DigitsStaySingle) {
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += "year 2024 and 2024, ";
  for (const auto& [piece, times] : count(text))
    EXPECT_EQ(piece.find_first_of("0123456789"), std::string::npos) << piece;
}

TEST(BpeTrainer, TooLittleTextIsAnError) {
  try {
    (void)train_bpe(count("ab ab"), {.token_count = 4096});
    FAIL() << "a vocabulary of 4096 out of two words";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("4096 are wanted"));
  }
}

TEST(BpeTrainer, ARoomTooSmallForBytesAndControlTokensIsAnError) {
  EXPECT_EQ(bpe_token_count(4096), 4096 - pocket_control_tokens().size());
  EXPECT_EQ(bpe_token_count(256 + pocket_control_tokens().size()), 256);
  EXPECT_THROW((void)bpe_token_count(255 + pocket_control_tokens().size()), Error);
}

TEST(TrainedTokenizer, HasEveryControlTokenOfServing) {
  const Tokenizer tokenizer = make_tokenizer(random_text(4, 2000), 400);
  EXPECT_EQ(tokenizer.vocabulary_size(), 400 + pocket_control_tokens().size());
  const ControlTokens control = require_control_tokens(tokenizer, tokenizer.vocabulary_size());
  EXPECT_EQ(control.begin_of_sentence, 0);
  EXPECT_EQ(control.end_of_sentence, 1);
  EXPECT_EQ(control.pad, 2);
  for (const std::string_view token : pocket_control_tokens())
    EXPECT_TRUE(tokenizer.find_added_token(token)) << token;
}

TEST(TrainedTokenizer, GivesBackEveryByteOfAnyText) {
  const Tokenizer tokenizer = make_tokenizer(random_text(5, 2000), 400);
  std::mt19937 random(5);
  std::string bytes;
  for (int i = 0; i < 4000; ++i)
    bytes += static_cast<char>(random() % 256);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), bytes);
  const std::string text = "Zażółć 中文 ✓ \t\r\n  1234567 <think> a｜b";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode_plain(text)), text);
}

TEST(TrainedTokenizer, EncodesWhatItWasTrainedOnAsTheMergesSay) {
  // "low" 3 times and "lower" once: lo, then low; "er" occurs once only.
  const Pieces pieces = {{"low", 3}, {"lower", 1}};
  const BpeVocabulary vocabulary = train_bpe(pieces, {.token_count = 258});
  const Tokenizer tokenizer = Tokenizer::parse(write_tokenizer_json(vocabulary), "trained");
  EXPECT_EQ(vocabulary.tokens[256], "lo");
  EXPECT_EQ(vocabulary.tokens[257], "low");
  EXPECT_THAT(tokenizer.encode("lower"), ::testing::ElementsAre(3 + 257, 3 + 'e', 3 + 'r'));
}

TEST(TrainedTokenizer, AChatWithToolsComesBackAsItsText) {
  const Tokenizer tokenizer = make_tokenizer(random_text(6, 2000), 400);
  const Json body = parse_json(R"({"messages": [{"role": "user", "content": "Weather <think> in Lima?"}],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
    "reasoning_effort": 10})");
  const PreparedChat chat = encode_chat_request(parse_chat_request(body));
  const std::vector<int32_t> ids = prompt_ids(tokenizer, chat.prompt);
  EXPECT_EQ(tokenizer.decode(ids), chat.prompt.text);
  const ControlTokens control = require_control_tokens(tokenizer, tokenizer.vocabulary_size());
  EXPECT_EQ(ids.front(), control.begin_of_sentence);
  EXPECT_EQ(ids.back(), *control.think_begin);
  // The user's own "<think>" is letters; the template's is the last token alone. Its schema text names the tags too.
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *control.user), 1);
}

}  // namespace
}  // namespace tidepool
