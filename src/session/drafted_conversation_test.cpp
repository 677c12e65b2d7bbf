// Turns with drafts: the same tokens, the same cache, the same cuts as without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "session/conversation.h"

namespace tidepool {
namespace {

std::unique_ptr<LoadedModel> load(const std::string& name, bool has_drafts) {
  LoadOptions options;
  options.folder = std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / name;
  options.threads = 1;
  options.has_drafts = has_drafts;
  return LoadedModel::load(options);
}

/// One conversation with a cache of its own.
class Talk {
 public:
  Talk(const LoadedModel& model, DraftOptions drafts)
      : cache_(model.model().kv_layout(), cache_options()), conversation_(model, cache_), drafts_(drafts) {}

  TurnResult run(TurnRequest turn) {
    turn.drafts = drafts_;
    return conversation_.run(turn);
  }

 private:
  static KvCacheOptions cache_options() {
    KvCacheOptions options;
    options.ram_bytes = size_t{64} << 20;
    options.snapshot_ram_bytes = size_t{64} << 20;
    return options;
  }

  KvCache cache_;
  Conversation conversation_;
  DraftOptions drafts_;
};

constexpr DraftOptions kOff{};
constexpr DraftOptions kFive{.mode = DraftOptions::Mode::kFixed, .length = 5};
constexpr DraftOptions kAuto{.mode = DraftOptions::Mode::kAuto};

TurnRequest raw_turn(std::vector<int32_t> prompt, int64_t max_tokens) {
  TurnRequest turn;
  turn.prompt = std::move(prompt);
  turn.output.kind = OutputFormat::Kind::kRaw;
  turn.generation.sampling.temperature = 0;
  turn.generation.max_tokens = max_tokens;
  return turn;
}

std::vector<int32_t> ids_of(const TurnResult& result) {
  std::vector<int32_t> ids;
  ids.reserve(result.tokens.size());
  for (const SampledToken& token : result.tokens)
    ids.push_back(token.id);
  return ids;
}

class DraftedConversation : public testing::Test {
 protected:
  static void SetUpTestSuite() { shared_model = load("ckpt", true); }
  static void TearDownTestSuite() { shared_model.reset(); }
  static const LoadedModel& model() { return *shared_model; }

  inline static std::unique_ptr<LoadedModel> shared_model;
};

/// The tiny model likes to repeat itself, so some of its drafts are taken and most are not.
TEST_F(DraftedConversation, TurnsAndHitsAreThoseWithoutDrafts) {
  Talk plain(model(), kOff);
  Talk fixed(model(), kFive);
  Talk automatic(model(), kAuto);
  std::vector<int32_t> prompt = {5, 6, 7, 8, 9, 10};
  int64_t accepted = 0;
  for (int turn = 0; turn < 4; ++turn) {
    const TurnResult expected = plain.run(raw_turn(prompt, 30));
    for (Talk* talk : {&fixed, &automatic}) {
      const TurnResult result = talk->run(raw_turn(prompt, 30));
      EXPECT_EQ(ids_of(result), ids_of(expected));
      EXPECT_EQ(result.completion.content, expected.completion.content);
      EXPECT_EQ(result.cache.hit_tokens, expected.cache.hit_tokens);
      accepted += result.drafts.accepted_total();
    }
    const std::vector<int32_t> output = ids_of(expected);
    prompt.insert(prompt.end(), output.begin(), output.end());
    prompt.push_back(20 + turn);
  }
  EXPECT_GT(accepted, 0);
}

TEST_F(DraftedConversation, SamePromptAgainIsAHit) {
  Talk talk(model(), kFive);
  const std::vector<int32_t> prompt(200, 17);
  const TurnResult first = talk.run(raw_turn(prompt, 6));
  const TurnResult again = talk.run(raw_turn(prompt, 6));
  EXPECT_EQ(ids_of(again), ids_of(first));
  EXPECT_GT(again.cache.hit_tokens, 100);
}

/// A stop string ends the answer wherever a block of drafts happens to stand; the next turn, whose prompt is the
/// visible text, finds everything up to the cut.
TEST_F(DraftedConversation, StopStringInsideABlockCutsTheSequenceToo) {
  const std::vector<int32_t> prompt = {5, 6, 7, 8, 9, 10};
  const TurnResult whole = Talk(model(), kOff).run(raw_turn(prompt, 24));
  for (size_t end = 2; end < 20; end += 3) {
    TurnRequest turn = raw_turn(prompt, 24);
    std::string text;
    for (size_t i = 0; i < end; ++i)
      text += model().tokenizer().token_bytes(whole.tokens[i].id);
    if (text.size() < 6) continue;
    turn.output.stops = {text.substr(text.size() - 6)};
    Talk plain(model(), kOff);
    Talk drafted(model(), kFive);
    const TurnResult expected = plain.run(turn);
    const TurnResult result = drafted.run(turn);
    EXPECT_EQ(ids_of(result), ids_of(expected));
    EXPECT_EQ(result.completion.content, expected.completion.content);
    EXPECT_EQ(result.finish, FinishReason::kStopText);
    std::vector<int32_t> next = prompt;
    const std::vector<int32_t> output = ids_of(expected);
    next.insert(next.end(), output.begin(), output.end());
    next.push_back(30);
    const TurnResult plain_next = plain.run(raw_turn(next, 8));
    const TurnResult drafted_next = drafted.run(raw_turn(next, 8));
    EXPECT_EQ(ids_of(drafted_next), ids_of(plain_next));
    EXPECT_EQ(drafted_next.cache.hit_tokens, plain_next.cache.hit_tokens);
    EXPECT_GE(drafted_next.cache.hit_tokens, static_cast<int64_t>(prompt.size() + output.size() - 1));
  }
}

TEST_F(DraftedConversation, SampledOutputFollowsFromTheSeedWhereItMust) {
  const auto run = [&](DraftOptions drafts) {
    TurnRequest turn = raw_turn({5, 6, 7, 8, 9, 10}, 30);
    turn.generation.sampling.temperature = 1;
    turn.generation.sampling.seed = 11;
    return ids_of(Talk(model(), drafts).run(turn));
  };
  DraftOptions repeatable = kAuto;
  repeatable.is_repeatable = true;
  EXPECT_EQ(run(repeatable), run(repeatable));
  EXPECT_EQ(run(kFive), run(kFive));
}

TEST(DraftlessConversation, AutoDoesWithoutAHeadAndANumberIsRefused) {
  const std::unique_ptr<LoadedModel> text_only = load("ckpt_textonly", true);
  const TurnResult expected = Talk(*text_only, kOff).run(raw_turn({5, 6, 7}, 6));
  const TurnResult result = Talk(*text_only, kAuto).run(raw_turn({5, 6, 7}, 6));
  EXPECT_EQ(ids_of(result), ids_of(expected));
  EXPECT_EQ(result.drafts.rounds, 0);
  try {
    (void)Talk(*text_only, kFive).run(raw_turn({5, 6, 7}, 6));
    FAIL() << "there is nothing to draft with";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("no draft head"));
  }
}

TEST(DraftOptionsText, IsOffAutoOrANumber) {
  EXPECT_EQ(parse_draft_options("off").mode, DraftOptions::Mode::kOff);
  EXPECT_EQ(parse_draft_options("auto").mode, DraftOptions::Mode::kAuto);
  EXPECT_EQ(parse_draft_options("3").mode, DraftOptions::Mode::kFixed);
  EXPECT_EQ(parse_draft_options("3").length, 3U);
  for (const char* text : {"", "0", "-1", "65", "3x", "on", "99999999999999999999"})
    EXPECT_THROW((void)parse_draft_options(text), Error) << text;
}

}  // namespace
}  // namespace tidepool
