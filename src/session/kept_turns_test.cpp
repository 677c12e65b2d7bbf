#include "session/kept_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "session/service_test_support.h"

namespace tidepool {
namespace {

using Part = KeptTurns::Answer::Part;
using service_testing::message;

ChatMessage with_call(std::string_view arguments) {
  ChatMessage result = message(ChatRole::kAssistant, "");
  result.tool_calls.push_back({"call_1", "weather", "", Json::make_string(std::string(arguments))});
  return result;
}

std::string canonical_arguments(std::string_view arguments) {
  return canonical_turn(with_call(arguments));
}

TEST(CanonicalTurn, ArgumentsAreComparedByValue) {
  const std::string one = canonical_arguments(R"({"city": "Köln", "days": 3, "unit": {"a": [1, 2], "b": null}})");
  EXPECT_EQ(canonical_arguments(R"({"unit":{"b":null,"a":[1,2]},"days":3,"city":"K\u00f6ln"})"), one);
  EXPECT_EQ(canonical_arguments(R"("{\"city\": \"Köln\", \"days\": 3.0, \"unit\": {\"a\": [1, 2], \"b\": null}}")"),
            one);
  EXPECT_EQ(canonical_arguments(R"({"city": "Köln", "days": 3e0, "unit": {"a": [1, 2], "b": null}})"), one);
  EXPECT_NE(canonical_arguments(R"({"city": "Köln", "days": "3", "unit": {"a": [1, 2], "b": null}})"), one);
  EXPECT_NE(canonical_arguments(R"({"city": "Köln", "days": 3, "unit": {"a": [2, 1], "b": null}})"), one);
  EXPECT_NE(canonical_arguments(R"({"city": "Köln", "days": 3, "unit": {"a": [1, 2]}})"), one);
}

TEST(CanonicalTurn, NumbersKeepWhatTellsThemApart) {
  EXPECT_NE(canonical_arguments(R"({"id": 1234567890123456789})"),
            canonical_arguments(R"({"id": 1234567890123456788})"));
  EXPECT_EQ(canonical_arguments(R"({"x": 1e2})"), canonical_arguments(R"({"x": 100})"));
  EXPECT_EQ(canonical_arguments(R"({"x": -0.0})"), canonical_arguments(R"({"x": 0})"));
  EXPECT_EQ(canonical_arguments(R"({"x": 0.10})"), canonical_arguments(R"({"x": 1e-1})"));
}

TEST(CanonicalTurn, ArgumentsMayComeAsAnObject) {
  ChatMessage object = with_call("");
  object.tool_calls[0].arguments = parse_json(R"({"b": 1, "a": 2})");
  EXPECT_EQ(canonical_turn(object), canonical_arguments(R"({"a":2,"b":1})"));
}

TEST(CanonicalTurn, BrokenArgumentsAreComparedAsText) {
  EXPECT_EQ(canonical_arguments("{\"a\": "), canonical_arguments("{\"a\": "));
  EXPECT_NE(canonical_arguments("{\"a\": "), canonical_arguments("{\"a\":"));
}

TEST(CanonicalTurn, OuterWhiteSpaceAndBlocksDoNotCount) {
  ChatMessage blocks = message(ChatRole::kAssistant, "one");
  blocks.content.push_back(message(ChatRole::kAssistant, "two").content[0]);
  EXPECT_EQ(canonical_turn(blocks), canonical_turn(message(ChatRole::kAssistant, "\none\n\ntwo  ")));
  EXPECT_NE(canonical_turn(blocks), canonical_turn(message(ChatRole::kAssistant, "one two")));
}

TEST(CanonicalTurn, CompletionAndMessageAgree) {
  Completion completion;
  completion.content = "Let me look.";
  completion.calls.push_back({"weather", R"({"city": "Köln"})", true});
  ChatMessage sent_back = with_call(R"({"city":"Köln"})");
  sent_back.content = message(ChatRole::kAssistant, "Let me look.").content;
  sent_back.reasoning = "does not count";
  EXPECT_EQ(canonical_turn(sent_back), canonical_turn(completion));
  completion.calls[0].name = "tools::weather";
  EXPECT_NE(canonical_turn(sent_back), canonical_turn(completion));
  sent_back.tool_calls[0].space = "tools";
  EXPECT_EQ(canonical_turn(sent_back), canonical_turn(completion));
}

TEST(CanonicalTurn, ContentThatReadsLikeACallIsNone) {
  ChatMessage call = with_call(R"({"city": "Ulm"})");
  EXPECT_NE(canonical_turn(message(ChatRole::kAssistant, canonical_turn(call))), canonical_turn(call));
  EXPECT_NE(canonical_turn(message(ChatRole::kAssistant, R"(call "weather" {"city":"Ulm",})")), canonical_turn(call));
}

TEST(CanonicalTurn, NothingIsNoTurn) {
  EXPECT_EQ(canonical_turn(message(ChatRole::kAssistant, " \n")), "");
}

KeptTurn turn(std::vector<int32_t> ids, size_t body, std::string reasoning, uint64_t prompt = 0) {
  KeptTurn result;
  result.ids = std::move(ids);
  result.has_reasoning = true;
  result.body = body;
  result.reasoning = std::move(reasoning);
  result.prompt_fingerprint = prompt;
  return result;
}

std::vector<int32_t> ids_of(const std::optional<KeptTurns::Answer>& answer) {
  return answer ? answer->ids : std::vector<int32_t>{-1};
}

TEST(KeptTurns, GivesTheWholeTurnWhereReasoningIsKeptAndElseItsBody) {
  KeptTurns kept(1 << 20);
  kept.keep("", "a", turn({1, 2, 3, 4}, 2, "r"));
  EXPECT_EQ(ids_of(kept.find({.salt = "", .turn_text = "a", .has_reasoning = true})), (std::vector{1, 2, 3, 4}));
  EXPECT_EQ(ids_of(kept.find({.salt = "", .turn_text = "a", .has_reasoning = false})), (std::vector{3, 4}));
  EXPECT_FALSE(kept.find({.salt = "", .turn_text = "b"}));
  EXPECT_FALSE(kept.find({.salt = "", .turn_text = ""}));
}

TEST(KeptTurns, SaltsIsolate) {
  KeptTurns kept(1 << 20);
  kept.keep("x", "a", turn({1}, 0, ""));
  EXPECT_FALSE(kept.find({.salt = "", .turn_text = "a"}));
  EXPECT_FALSE(kept.find({.salt = "xa", .turn_text = ""}));
  EXPECT_FALSE(kept.find({.salt = std::string_view("x\0a", 3), .turn_text = "1"}));
  EXPECT_TRUE(kept.find({.salt = "x", .turn_text = "a"}));
}

TEST(KeptTurns, OtherReasoningThanItsOwnLeavesTheBodyOnly) {
  KeptTurns kept(1 << 20);
  kept.keep("", "a", turn({1, 2}, 1, "own"));
  EXPECT_EQ(ids_of(kept.find({.turn_text = "a", .has_reasoning = true, .reasoning = "\nown "})), (std::vector{1, 2}));
  const auto other = kept.find({.turn_text = "a", .has_reasoning = true, .reasoning = "edited"});
  ASSERT_TRUE(other);
  EXPECT_EQ(other->part, Part::kBody);
}

TEST(KeptTurns, CutTurnGivesItsReasoningOnly) {
  KeptTurns kept(1 << 20);
  KeptTurn cut = turn({1, 2, 3}, 2, "r");
  cut.is_cut = true;
  kept.keep("", "a", std::move(cut));
  const auto answer = kept.find({.turn_text = "a", .has_reasoning = true});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->part, Part::kReasoning);
  EXPECT_EQ(answer->ids, (std::vector{1, 2}));
  EXPECT_FALSE(kept.find({.turn_text = "a", .has_reasoning = false}));
}

/// An agent says "Done." often; meant is the one that answered just this prompt, or the one with the reasoning sent.
TEST(KeptTurns, AmongEqualTextsTheRightOneIsFound) {
  KeptTurns kept(1 << 20);
  kept.keep("", "a", turn({1, 9}, 1, "r1", 100));
  kept.keep("", "a", turn({2, 9}, 1, "r2", 200));
  kept.keep("", "a", turn({3, 9}, 1, "r3", 300));
  const auto first = [&](std::string_view reasoning, uint64_t prompt) {
    return ids_of(
        kept.find({.turn_text = "a", .has_reasoning = true, .reasoning = reasoning, .prompt_fingerprint = prompt}))[0];
  };
  EXPECT_EQ(first("", 200), 2);
  EXPECT_EQ(first("r1", 200), 1);
  EXPECT_EQ(first("r2", 0), 2);
}

/// Two conversations with the same visible answer: what one thought never reaches the prompt of the other.
TEST(KeptTurns, ReasoningOfAnotherConversationIsNeverGiven) {
  KeptTurns kept(1 << 20);
  kept.keep("", "Done.", turn({1, 2, 9}, 2, "secret", 100));
  KeptTurn cut = turn({3, 4, 9}, 2, "cut secret", 101);
  cut.is_cut = true;
  kept.keep("", "Done.", std::move(cut));
  for (const std::string_view sent : {"", " \n", "other", "secre", "secret too"}) {
    const auto answer =
        kept.find({.turn_text = "Done.", .has_reasoning = true, .reasoning = sent, .prompt_fingerprint = 200});
    ASSERT_TRUE(answer) << sent;
    EXPECT_EQ(answer->part, Part::kBody) << sent;
    EXPECT_EQ(answer->ids, std::vector{9}) << sent;
  }
}

TEST(KeptTurns, MemoryIsBounded) {
  KeptTurns kept(20000);
  for (int32_t i = 0; i < 500; ++i) {
    kept.keep("", "text " + std::to_string(i), turn(std::vector<int32_t>(50, i), 0, ""));
    EXPECT_TRUE(kept.find({.turn_text = "text 0"})) << i;  // in use, so it stays
    EXPECT_LE(kept.stats().bytes, 20000U);
  }
  EXPECT_FALSE(kept.find({.turn_text = "text 1"}));
  EXPECT_TRUE(kept.find({.turn_text = "text 499"}));
  kept.keep("", "too large", turn(std::vector<int32_t>(10000), 0, ""));
  EXPECT_FALSE(kept.find({.turn_text = "too large"}));
}

TEST(KeptTurns, SameTurnAgainTakesNoMoreRoom) {
  KeptTurns kept(1 << 20);
  for (int i = 0; i < 100; ++i)
    kept.keep("", "a", turn({1, 2, 3}, 1, "r", 7));
  EXPECT_EQ(kept.stats().turns, 1U);
  for (uint64_t i = 0; i < 100; ++i)
    kept.keep("", "a", turn({1, 2, 3}, 1, "r", i));
  EXPECT_LE(kept.stats().turns, 16U);
  EXPECT_EQ(ids_of(kept.find({.turn_text = "a", .has_reasoning = true, .prompt_fingerprint = 99})),
            (std::vector{1, 2, 3}));
}

TEST(PromptFingerprint, OfPiecesIsThatOfTheWhole) {
  const std::vector<int32_t> ids = {5, 0, -1, 129279, 5};
  for (size_t cut = 0; cut <= ids.size(); ++cut) {
    PromptFingerprint pieces;
    pieces.add(std::span(ids).first(cut));
    EXPECT_EQ(pieces.value(), prompt_fingerprint(std::span(ids).first(cut)));
    pieces.add(std::span(ids).subspan(cut));
    EXPECT_EQ(pieces.value(), prompt_fingerprint(ids));
  }
  EXPECT_NE(prompt_fingerprint(ids), prompt_fingerprint(std::span(ids).first(4)));
}

}  // namespace
}  // namespace tidepool
