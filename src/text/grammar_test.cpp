#include "text/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/dsml.h"
#include "text/grammar_test_support.h"
#include "text/json_test_support.h"
#include "text/strict_parser.h"

namespace tidepool {
namespace {

using testing::HasSubstr;
using Calls = OutputGrammar::Calls;
using Content = OutputGrammar::Content;

/// With the control tokens as a grammar's bytes.
std::string encoded(std::string text) {
  for (const auto& [from, to] : {std::pair{dsml::kMark, kMarkByte}, std::pair{dsml::kThinkEnd, kThinkEndByte}}) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from))
      text.replace(at, from.size(), 1, static_cast<char>(to));
  }
  return text;
}

std::string decoded(std::string text) {
  for (const auto& [from, to] : {std::pair{kMarkByte, dsml::kMark}, std::pair{kThinkEndByte, dsml::kThinkEnd}}) {
    for (size_t at = text.find(static_cast<char>(from)); at != std::string::npos;
         at = text.find(static_cast<char>(from)))
      text.replace(at, 1, to);
  }
  return text;
}

bool accepts(const OutputGrammar& grammar, const std::string& text) {
  GrammarMatcher matcher(vocabulary().compile(grammar));
  return matcher.accept_text(encoded(text)) && matcher.can_end();
}

OutputGrammar calls_grammar(Calls calls, const std::vector<std::pair<std::string, std::string_view>>& tools) {
  OutputGrammar grammar;
  grammar.calls = calls;
  grammar.content = calls == Calls::kRequired ? Content::kNone : Content::kFree;
  for (const auto& [name, schema] : tools)
    grammar.tools.push_back({name, parse_json(schema), true, "tools[0].function.parameters"});
  return grammar;
}

const std::string kOpening = "\n\n<｜DSML｜ calls>\n";
const std::string kWeather =
    "<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter name=\"city\" string=\"true\">Paris</｜DSML｜ "
    "parameter>\n"
    "<｜DSML｜ parameter name=\"days\" string=\"false\">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n";
const std::string kClosing = "</｜DSML｜ calls>";
constexpr std::string_view kWeatherSchema =
    R"({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
          "required": ["city"]})";

/// The recorded calls of the reference that its own encoder could have written.
TEST(GrammarTools, GoldenCallsAreAccepted) {
  const Json cases = load_golden_cases("encoding/parse_strict.json");
  OutputGrammar grammar = calls_grammar(Calls::kPossible, {{"get_weather", "{}"},
                                                           {"f", "{}"},
                                                           {"a", "{}"},
                                                           {"b", "{}"},
                                                           {"c", "{}"},
                                                           {"ls", "{}"},
                                                           {"now", "{}"},
                                                           {"w", "{}"},
                                                           {"search::lookup", "{}"},
                                                           {"plain", "{}"}});
  const std::vector<std::string_view> ids = {"one-call",
                                             "call-without-eos",
                                             "parallel",
                                             "content-before-call",
                                             "no-parameters-blank-line",
                                             "no-parameters-tight",
                                             "string-needs-escaping",
                                             "string-looks-like-json",
                                             "empty-string-value",
                                             "angle-brackets-in-value",
                                             "value-with-newlines",
                                             "parameter-name-with-space",
                                             "namespace",
                                             "three-newlines-before-calls"};
  size_t found = 0;
  for (const Json& entry : cases.as_array()) {
    if (std::ranges::find(ids, entry.find("id")->as_string()) == ids.end()) continue;
    ++found;
    std::string text = entry.find("completion")->as_string();
    if (text.ends_with(dsml::kEndOfSentence)) text.resize(text.size() - dsml::kEndOfSentence.size());
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  EXPECT_EQ(found, ids.size());
}

TEST(GrammarTools, ForcedCallsBeginWithTheBlockNotWithAnInvoke) {
  const OutputGrammar grammar = calls_grammar(Calls::kRequired, {{"get_weather", kWeatherSchema}});
  EXPECT_TRUE(accepts(grammar, kOpening + kWeather + kClosing));
  EXPECT_TRUE(accepts(grammar, kOpening + kWeather + kWeather + kClosing));
  EXPECT_FALSE(accepts(grammar, kWeather + kClosing));
  EXPECT_FALSE(accepts(grammar, "\n\n" + kWeather));
  EXPECT_FALSE(accepts(grammar, kOpening + kClosing));
  EXPECT_FALSE(accepts(grammar, kOpening + kWeather));
  EXPECT_FALSE(accepts(grammar, kOpening + kWeather + kClosing + "x"));
  EXPECT_FALSE(accepts(grammar, "Sure." + kOpening + kWeather + kClosing));

  OutputGrammar inside = grammar;
  inside.start = OutputStart::kCalls;  // the prompt has the opening line
  EXPECT_TRUE(accepts(inside, kWeather + kClosing));
  EXPECT_FALSE(accepts(inside, kOpening + kWeather + kClosing));

  OutputGrammar thinking = grammar;
  thinking.start = OutputStart::kReasoning;
  EXPECT_TRUE(accepts(thinking, "Let me see.</think>" + kOpening + kWeather + kClosing));
  EXPECT_FALSE(accepts(thinking, kOpening + kWeather + kClosing));

  OutputGrammar single = grammar;
  single.allows_parallel = false;
  EXPECT_TRUE(accepts(single, kOpening + kWeather + kClosing));
  EXPECT_FALSE(accepts(single, kOpening + kWeather + kWeather + kClosing));
}

std::string call(const std::string& parameters) {
  return kOpening + "<｜DSML｜ invoke name=\"f\">\n" + parameters + "</｜DSML｜ invoke>\n" + kClosing;
}

std::string parameter(const std::string& name, std::string_view kind, const std::string& value) {
  return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + std::string(kind) + "\">" + value +
         "</｜DSML｜ parameter>\n";
}

TEST(GrammarTools, ParametersHaveTheTypesOfTheSchema) {
  const OutputGrammar grammar = calls_grammar(Calls::kRequired, {{"f", R"({"type": "object", "properties": {
      "s": {"type": "string", "maxLength": 12}, "e": {"enum": ["x<y", 3]}, "n": {"type": ["string", "null"]},
      "o": {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]}}, "required": ["s"]})"}});
  const std::string s = parameter("s", "true", "a");
  EXPECT_TRUE(accepts(grammar, call(s)));
  EXPECT_TRUE(accepts(grammar, call(parameter("s", "true", ""))));
  EXPECT_TRUE(accepts(grammar, call(parameter("s", "true", "</ 2>&1 <\"\n"))));
  EXPECT_TRUE(accepts(grammar, call(parameter("s", "true", "a</"))));
  EXPECT_TRUE(accepts(grammar, call(s + parameter("e", "true", "x<y") + parameter("n", "false", "null"))));
  EXPECT_TRUE(accepts(grammar, call(s + parameter("e", "false", "3") + parameter("n", "true", "null"))));
  EXPECT_TRUE(accepts(grammar, call(s + parameter("o", "false", R"({"k": "</"})"))));
  EXPECT_FALSE(accepts(grammar, call("")));
  EXPECT_FALSE(accepts(grammar, call(parameter("s", "false", "\"a\""))));
  EXPECT_FALSE(accepts(grammar, call(parameter("s", "true", "1234567890123"))));
  EXPECT_FALSE(accepts(grammar, call(parameter("s", "true", "a｜DSML｜b"))));
  EXPECT_FALSE(accepts(grammar, call(s + parameter("e", "true", "3"))));
  EXPECT_FALSE(accepts(grammar, call(s + parameter("n", "false", "\"x\""))));
  EXPECT_FALSE(accepts(grammar, call(s + parameter("o", "false", "{}"))));
  EXPECT_FALSE(accepts(grammar, call(s + s)));
  EXPECT_FALSE(accepts(grammar, call(parameter("e", "false", "3") + s)));
  EXPECT_FALSE(accepts(grammar, call(s + parameter("z", "true", "1"))));
}

TEST(GrammarTools, FreeTextMayTurnIntoACallAndNothingElse) {
  const OutputGrammar grammar = calls_grammar(Calls::kPossible, {{"get_weather", kWeatherSchema}});
  EXPECT_TRUE(accepts(grammar, ""));
  EXPECT_TRUE(accepts(grammar, "1 < 2 </b> \xC3"));
  EXPECT_TRUE(accepts(grammar, "I'll look." + kOpening + kWeather + kClosing));
  EXPECT_FALSE(accepts(grammar, "x｜DSML｜"));
  EXPECT_FALSE(accepts(grammar, "x</｜DSML｜ calls>"));
  EXPECT_FALSE(accepts(grammar, "x<｜DSML｜ invoke"));
  EXPECT_FALSE(accepts(grammar, kOpening + kWeather + kClosing + "more"));
}

TEST(GrammarTools, AnAnswerInJsonMayGiveWayToACall) {
  OutputGrammar grammar = calls_grammar(Calls::kPossible, {{"get_weather", kWeatherSchema}});
  grammar.content = Content::kJson;
  grammar.schema = parse_json(R"({"const": {"a": 1}})");
  EXPECT_TRUE(accepts(grammar, R"({"a": 1})"));
  EXPECT_TRUE(accepts(grammar, kOpening + kWeather + kClosing));
  EXPECT_FALSE(accepts(grammar, R"({"a": 1})" + kOpening + kWeather + kClosing));
}

TEST(GrammarTools, SchemasThatCannotBeHonoured) {
  OutputGrammar grammar = calls_grammar(Calls::kRequired, {{"f", R"({"properties": {"a": {"not": {}}}})"}});
  try {
    (void)make_grammar(grammar, MarkForm::kControlToken);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("tools[0].function.parameters/properties/a: not:"));
  }
  grammar.tools[0].is_strict = false;
  const MadeGrammar made = make_grammar(grammar, MarkForm::kControlToken);
  ASSERT_EQ(made.untyped_tools.size(), 1U);
  EXPECT_THAT(made.untyped_tools[0], HasSubstr("f: tools[0].function.parameters/properties/a: not:"));
  EXPECT_TRUE(accepts(grammar, call(parameter("a", "true", "x") + parameter("b c", "false", "[1]"))));
  EXPECT_FALSE(accepts(grammar, call(parameter("a", "false", "\"x\""))));

  for (const char* schema :
       {R"({"type": "string"})", R"({"properties": {"a\"b": {}}})", R"({"properties": {"a<": {}}})",
        R"({"properties": {"｜": {}}})", R"({"const": {"a": 1}})"}) {
    EXPECT_THROW((void)make_grammar(calls_grammar(Calls::kRequired, {{"f", schema}}), MarkForm::kControlToken), Error)
        << schema;
  }
}

/// Every output of forced calls is what the reference's strict parser reads, with arguments that satisfy the schema.
TEST(GrammarTools, RandomCallsAreReadByTheStrictParser) {
  for (uint32_t trial = 0; trial < 150; ++trial) {
    Json schema = RandomSchema(trial + 900).document();
    if (const Json* type = schema.find("type"); type == nullptr || *type != Json::make_string("object")) continue;
    if (write_json(schema).find("quo") != std::string::npos) continue;  // a name that no tag can hold
    OutputGrammar grammar = calls_grammar(Calls::kRequired, {{"f", "{}"}, {"g", "{}"}});
    grammar.tools[0].parameters = schema;
    grammar.allows_parallel = trial % 2 == 0;
    GrammarMatcher matcher(vocabulary().compile(grammar));
    RandomOutput output(trial);
    std::vector<uint64_t> words(matcher.grammar().trie().word_count());
    std::string text;
    while (!matcher.has_ended() && text.size() < 20'000) {
      matcher.fill_mask(words);
      const int32_t id = output.draw(words, text.size());
      ASSERT_TRUE(matcher.accept(id));
      text += matcher.grammar().trie().text(id);
    }
    if (!matcher.has_ended()) continue;  // many calls behind each other
    const ParsedMessage message =
        parse_completion_strictly(decoded(text) + std::string(dsml::kEndOfSentence), ThinkingMode::kChat);
    ASSERT_FALSE(message.tool_calls.empty());
    for (const ParsedCall& parsed : message.tool_calls) {
      const Json arguments = parse_json(parsed.arguments);
      ASSERT_TRUE(parsed.name == "g" || SchemaOracle(schema).is_valid(arguments)) << write_json(schema) << text;
    }
  }
}

ChatRequest request_of(std::string_view body) {
  return parse_chat_request(parse_json(body));
}

TEST(OutputGrammarOf, FollowsTheRequest) {
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": false}},
                   {"type": "function", "function": {"name": "g", "parameters": {}}}], )";
  const std::string messages = R"("messages": [{"role": "user", "content": "x"}], "thinking": {"type": "disabled"}})";
  const auto of = [&](const std::string& fields) {
    return output_grammar_of(request_of("{" + fields + messages), OutputStart::kContent, true);
  };
  EXPECT_FALSE(of("").has_value());
  EXPECT_FALSE(of(tools).has_value());
  EXPECT_FALSE(of(R"("response_format": {"type": "text"}, )").has_value());
  EXPECT_EQ(of(R"("response_format": {"type": "json_object"}, )")->content, Content::kJson);
  EXPECT_EQ(of(tools + R"("tool_choice": "required", )")->tools.size(), 2U);
  EXPECT_EQ(of(tools + R"("tool_choice": "required", )")->calls, Calls::kRequired);
  const auto named = of(tools + R"("tool_choice": {"type": "function", "function": {"name": "g"}}, )");
  ASSERT_EQ(named->tools.size(), 1U);
  EXPECT_EQ(named->tools[0].name, "g");
  EXPECT_EQ(named->tools[0].path, "tools[1].function.parameters");
  EXPECT_FALSE(of(tools + R"("tool_choice": "none", )").has_value());
  EXPECT_EQ(of(tools + R"("response_format": {"type": "json_object"}, )")->calls, Calls::kPossible);
  EXPECT_THROW((void)of(R"("response_format": {"type": "json_schema", "json_schema": {"name": "x"}}, )"), Error);
  EXPECT_THROW((void)of(R"("response_format": {"type": "yaml"}, )"), Error);
}

TEST(MakeGrammar, RefusesTooMuchTextWithItsPlace) {
  OutputGrammar grammar = json_grammar("{}");
  grammar.schema.set("title", Json::make_string(std::string(kGrammarBytesMax, 'x')));
  EXPECT_THROW((void)make_grammar(grammar, MarkForm::kControlToken), Error);
  try {
    (void)make_grammar(json_grammar(R"({"type": "integer", "minimum": 2, "maximum": 1})"), MarkForm::kControlToken);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("schema: the schema allows no value"));
  }
}

}  // namespace
}  // namespace tidepool
