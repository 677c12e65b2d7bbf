#include "text/completion_parser.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <array>
#include <random>

#include "base/error.h"
#include "text/chat_encoding.h"
#include "text/dsml.h"
#include "text/json_test_support.h"
#include "text/strict_parser.h"

namespace tidepool {
namespace {

CompletionParserOptions options_of(const Json& golden) {
  const Json& given = *golden.find("options");
  CompletionParserOptions options;
  options.has_tools = given.find("tools")->as_bool();
  if (given.find("thinking")->as_bool()) options.start = OutputStart::kReasoning;
  if (given.find("forced_tool_prefix")->as_bool()) options.start = OutputStart::kCalls;
  for (const Json& stop : given.find("stop")->as_array())
    options.stops.push_back(stop.as_string());
  return options;
}

/// The result in the layout of the golden file.
std::string result_text(const Completion& completion) {
  Json calls = Json::make_array();
  for (const Completion::Call& call : completion.calls) {
    Json shown = Json::make_object();
    shown.set("name", Json::make_string(call.name));
    shown.set("arguments", Json::make_string(call.arguments));
    calls.as_array().push_back(shown);
  }
  Json result = Json::make_object();
  result.set("reasoning_content", Json::make_string(completion.reasoning));
  result.set("content", Json::make_string(completion.content));
  result.set("tool_calls", calls);
  result.set("stop_sequence_hit", Json::make_bool(completion.has_hit_stop));
  return write_json(result);
}

/// Everything observable, completeness of calls included.
std::string whole(const Completion& completion) {
  std::string text = result_text(completion);
  for (const Completion::Call& call : completion.calls)
    text += call.is_complete ? " complete" : " cut";
  return text;
}

Completion parse_pieces(const std::vector<std::string_view>& pieces, const CompletionParserOptions& options) {
  CompletionParser parser(options);
  Completion completion;
  for (const std::string_view piece : pieces)
    completion.add(parser.feed(piece));
  completion.add(parser.finish());
  return completion;
}

struct Sample {
  std::string name;
  std::string text;
  CompletionParserOptions options;
};

/// All golden texts, strict ones too (without their end token) in each state the parser can begin in.
std::vector<Sample> samples() {
  std::vector<Sample> result;
  const Json streamed = load_golden_cases("encoding/parse_stream.json");
  for (const Json& golden : streamed.as_array()) {
    result.push_back({golden.find("id")->as_string(), golden.find("text")->as_string(), options_of(golden)});
  }
  const Json strict = load_golden_cases("encoding/parse_strict.json");
  for (const Json& golden : strict.as_array()) {
    std::string text = golden.find("completion")->as_string();
    if (text.ends_with(dsml::kEndOfSentence)) text.resize(text.size() - dsml::kEndOfSentence.size());
    const OutputStart start =
        golden.find("thinking_mode")->as_string() == "thinking" ? OutputStart::kReasoning : OutputStart::kContent;
    result.push_back({"strict " + golden.find("id")->as_string(), text, {start, true, {"\n\n", "nn", "é"}}});
  }
  return result;
}

constexpr std::string_view kThreeParameters =
    "Hm.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
    "<｜DSML｜ parameter name=\"a\" string=\"true\">x y</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"b\" string=\"false\">[1, 2]</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"c\" string=\"true\">z</｜DSML｜ parameter>\n"
    "</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"g\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
constexpr std::string_view kThreeArguments = R"({"a": "x y", "b": [1, 2], "c": "z"})";

TEST(CompletionParser, EveryGoldenTextReadsAsStated) {
  const Json streamed = load_golden_cases("encoding/parse_stream.json");
  for (const Json& golden : streamed.as_array()) {
    SCOPED_TRACE(golden.find("id")->as_string());
    const Completion completion = parse_completion(golden.find("text")->as_string(), options_of(golden));
    EXPECT_EQ(result_text(completion), write_json(*golden.find("result")));
  }
}

TEST(CompletionParser, EveryTwoWaySplitEqualsNoSplit) {
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.name);
    const std::string_view text = sample.text;
    const std::string expected = whole(parse_completion(text, sample.options));
    for (size_t at = 0; at <= text.size(); ++at) {
      ASSERT_EQ(whole(parse_pieces({text.substr(0, at), text.substr(at)}, sample.options)), expected) << at;
    }
  }
}

TEST(CompletionParser, RandomSplitsEqualNoSplit) {
  std::mt19937 random(20261130);
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.name);
    const std::string expected = whole(parse_completion(sample.text, sample.options));
    for (int round = 0; round < 200; ++round) {
      const size_t longest = 1 + random() % 24;
      std::vector<std::string_view> pieces;
      for (std::string_view rest = sample.text; !rest.empty();) {
        pieces.push_back(rest.substr(0, 1 + random() % longest));
        rest.remove_prefix(pieces.back().size());
      }
      ASSERT_EQ(whole(parse_pieces(pieces, sample.options)), expected) << "round " << round;
    }
  }
}

/// The text of the events, each of which must be whole UTF-8 when the pieces are.
TEST(CompletionParser, EventsNeverCutUtf8) {
  const std::string text =
      "思\n考 <｜DS</think>答案。、<｜不\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"查\">\n<｜DSML｜ parameter "
      "name=\"城市\" string=\"true\">上海<｜D🌃\n</｜DSML｜ parameter>\n</｜DSML｜ invoke>";
  CompletionParser parser({OutputStart::kReasoning, true, {"。。"}});
  const auto is_whole = [](std::string_view piece) {
    return piece.empty() || ((static_cast<unsigned char>(piece.front()) & 0xC0U) != 0x80U);
  };
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    while (end < text.size() && !is_whole(std::string_view(text).substr(end, 1)))
      ++end;
    for (const CompletionEvent& event : parser.feed(std::string_view(text).substr(begin, end - begin))) {
      EXPECT_TRUE(is_whole(event.text)) << event.text;
    }
    begin = end;
  }
}

TEST(CompletionParser, TextThatEndsInsideAMarkerIsReleased) {
  for (const std::string_view marker : {dsml::kThinkEnd, dsml::kOpen, dsml::kClose, std::string_view("STOP")}) {
    for (size_t bytes = 1; bytes < marker.size(); ++bytes) {
      const std::string text = "answer\n" + std::string(marker.substr(0, bytes));
      EXPECT_EQ(parse_completion(text, {OutputStart::kContent, true, {"STOP"}}).content, text);
      EXPECT_EQ(parse_completion(text, {OutputStart::kReasoning, true, {"STOP"}}).reasoning, text);
    }
  }
}

TEST(CompletionParser, ValuesMayEndInAnyPartOfTheirCloser) {
  for (size_t bytes = 0; bytes < dsml::kClose.size(); ++bytes) {
    const std::string value = "2>&1" + std::string(dsml::kClose.substr(0, bytes));
    const std::string text = fmt::format(
        "<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">{}</｜DSML｜ parameter>\n"
        "</｜DSML｜ invoke>",
        value);
    const std::string expected = fmt::format("{{\"a\": \"{}\"}}", value);
    const CompletionParserOptions options{OutputStart::kContent, true, {}};
    for (size_t at = 0; at <= text.size(); ++at) {
      const std::string_view view = text;
      const Completion completion = parse_pieces({view.substr(0, at), view.substr(at)}, options);
      ASSERT_EQ(completion.calls.at(0).arguments, expected) << at;
      ASSERT_TRUE(completion.calls.at(0).is_complete);
    }
  }
}

TEST(CompletionParser, AMissingParameterCloserDoesNotSwallowTheNext) {
  constexpr std::string_view kCloser = "</｜DSML｜ parameter>";
  for (size_t at = kThreeParameters.find(kCloser); at != std::string_view::npos;
       at = kThreeParameters.find(kCloser, at + 1)) {
    std::string text(kThreeParameters);
    text.erase(at, kCloser.size());
    const Completion completion = parse_completion(text, {OutputStart::kContent, true, {}});
    ASSERT_EQ(completion.calls.size(), 2U) << at;
    // The newline that is left before the next tag is that tag's line break, not part of the value.
    EXPECT_EQ(completion.calls[0].arguments, kThreeArguments) << at;
    EXPECT_EQ(completion.calls[1].arguments, "{}");
    EXPECT_TRUE(completion.calls[1].is_complete);
  }
}

TEST(CompletionParser, AMissingInvokeCloserEndsAtTheNextCall) {
  constexpr std::string_view kCloser = "</｜DSML｜ invoke>\n";
  std::string text(kThreeParameters);
  text.erase(text.find(kCloser), kCloser.size());
  const Completion completion = parse_completion(text, {OutputStart::kContent, true, {}});
  ASSERT_EQ(completion.calls.size(), 2U);
  EXPECT_EQ(completion.calls[0].arguments, kThreeArguments);
  EXPECT_EQ(completion.calls[1].name, "g");
}

// Tags dropped, repeated or swapped at random: whatever becomes of the call, no markup is shown as an answer.
TEST(CompletionParser, DamagedMarkupNeverShowsInTheAnswer) {
  std::vector<std::string> parts;
  for (std::string_view rest = kThreeParameters; !rest.empty();) {
    const size_t end = std::min(rest.find('>') + 1, rest.size());
    parts.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  std::mt19937 random(3);
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> damaged = parts;
    for (int edits = 0; edits < 3; ++edits) {
      const size_t at = random() % damaged.size();
      switch (random() % 3) {
        case 0: damaged.erase(damaged.begin() + static_cast<ptrdiff_t>(at)); break;
        case 1: damaged.insert(damaged.begin() + static_cast<ptrdiff_t>(at), damaged[at]); break;
        default: std::swap(damaged[at], damaged[random() % damaged.size()]);
      }
    }
    std::string text;
    for (const std::string& part : damaged)
      text += part;
    const Completion completion = parse_completion(text, {OutputStart::kContent, true, {}});
    ASSERT_EQ(completion.content.find(dsml::kMark), std::string::npos) << text;
  }
}

/// A JSON value from a seeded generator: texts are made of parts of the markup, quotes, controls and other scripts.
Json random_value(std::mt19937& random, int depth) {
  static constexpr std::array<std::string_view, 16> kParts = {"<",    "</",   "<｜",     "</｜DSML", "｜", "\n",
                                                              "\n\n", "\"",   "\\",      "a",        " ",  "é",
                                                              "中",   "\x01", "true\">", "parameter"};
  switch (random() % (depth > 0 ? 6U : 4U)) {
    case 0: return Json::make_integer(static_cast<int64_t>(random()));
    case 1: return Json::make_number(shortest_real(static_cast<double>(random()) / 7.0));
    case 2: return Json::make_bool(random() % 2 == 0);
    case 3: {
      std::string text;
      for (uint64_t parts = random() % 6; parts > 0; --parts)
        text += kParts.at(random() % kParts.size());
      // A value that holds the marker itself cannot be told from its end: values are not escaped.
      return Json::make_string(text.find(dsml::kMark) == std::string::npos ? text : "");
    }
    case 4: return Json::make_array({random_value(random, depth - 1), random_value(random, depth - 1)});
    default: {
      Json object = Json::make_object();
      object.set("k", random_value(random, depth - 1));
      return object;
    }
  }
}

// What the encoder writes for a call, both parsers read back as the same arguments.
TEST(CompletionParser, CallsReadAsTheyWereEncoded) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    ChatMessage message;
    message.role = ChatRole::kAssistant;
    message.tool_calls.push_back({"id", "f", "s", Json::make_object()});
    for (uint64_t keys = random() % 4; keys > 0; --keys) {
      message.tool_calls[0].arguments.set("key " + std::to_string(keys), random_value(random, 2));
    }
    const std::string expected = write_json(message.tool_calls[0].arguments);
    const std::string text = encode_chat({message}, {.adds_begin_of_sentence = false}).text;
    ASSERT_EQ(parse_completion_strictly(text, ThinkingMode::kChat).tool_calls.at(0).arguments, expected) << text;
    const Completion completion = parse_completion(text, {OutputStart::kContent, true, {}});
    ASSERT_EQ(completion.calls.at(0).arguments, expected) << text;
    ASSERT_EQ(completion.calls[0].name, "s::f");
    ASSERT_TRUE(completion.calls[0].is_complete);
  }
}

TEST(CompletionParser, KeysAreEscapedAndMayHoldSpaces) {
  const auto arguments = [](std::string_view tag) {
    const std::string text =
        fmt::format("<｜DSML｜ invoke name=\"f\"><｜DSML｜ parameter name={}v</｜DSML｜ parameter>", tag);
    return parse_completion(text, {OutputStart::kContent, true, {}}).calls.at(0).arguments;
  };
  EXPECT_EQ(arguments("\"a b\" string=\"true\">"), R"({"a b": "v")");
  EXPECT_EQ(arguments("\"q\"k\" string=\"false\">"), R"({"q\"k": v)");
  EXPECT_EQ(arguments("\"\" string=\"true\">"), R"({"": "v")");
  EXPECT_EQ(arguments("plain string=\"true\">"), R"({"plain": "v")");
  EXPECT_EQ(arguments("\"untyped\">"), R"({"untyped": "v")");
}

TEST(CompletionParser, NamesSplitAtTheirNamespace) {
  CompletionParser parser({OutputStart::kCalls, true, {}});
  const std::vector<CompletionEvent> events =
      parser.feed("<｜DSML｜ invoke name=\"s::f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].kind, CompletionEvent::Kind::kToolCallStart);
  EXPECT_EQ(events[0].text, "s::f");
  EXPECT_EQ(events[0].space, "s");
  EXPECT_EQ(events[0].name, "f");
  EXPECT_EQ(events[1].kind, CompletionEvent::Kind::kArguments);
  EXPECT_EQ(events[1].text, "{}");
  EXPECT_EQ(events[2].kind, CompletionEvent::Kind::kToolCallEnd);
  EXPECT_TRUE(parser.is_done());
}

TEST(CompletionParser, ContinuationsKeepLeadingNewlines) {
  EXPECT_EQ(parse_completion("\n\nmore", {OutputStart::kContinuation, false, {}}).content, "\n\nmore");
  EXPECT_EQ(parse_completion("\n\nmore", {OutputStart::kContent, false, {}}).content, "more");
}

TEST(CompletionParser, TheLongestOfTheStopsThatEndTogetherWins) {
  CompletionParser parser({OutputStart::kContent, false, {"bc", "abc"}});
  std::vector<CompletionEvent> events = parser.feed("xabcd");
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].text, "x");
  EXPECT_EQ(events[1].kind, CompletionEvent::Kind::kStop);
  EXPECT_EQ(events[1].stop_index, 1U);
  EXPECT_TRUE(parser.is_done());
}

TEST(CompletionParser, NothingOfAStopSequenceIsSentBeforeItsEnd) {
  CompletionParser parser({OutputStart::kContent, false, {"\nUser:"}});
  Completion completion;
  completion.add(parser.feed("Hello\nUs"));
  EXPECT_EQ(completion.content, "Hello");
  completion.add(parser.feed("er:"));
  EXPECT_EQ(completion.content, "Hello");
  EXPECT_TRUE(completion.has_hit_stop);
}

TEST(CompletionParser, EmptyStopSequencesAreRefused) {
  EXPECT_THROW(CompletionParser({OutputStart::kContent, false, {"a", ""}}), Error);
}

}  // namespace
}  // namespace tidepool
