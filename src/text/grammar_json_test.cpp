#include "text/grammar_json.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/grammar_test_support.h"

namespace tidepool {
namespace {

/// Whether the whole text is an output of the grammar.
bool accepts(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text) {
  GrammarMatcher matcher(grammar);
  return matcher.accept_text(text) && matcher.can_end();
}

struct SchemaCase {
  std::string_view schema;
  std::vector<std::string_view> good;
  std::vector<std::string_view> bad;
};

void check(const std::vector<SchemaCase>& cases) {
  for (const SchemaCase& entry : cases) {
    const std::shared_ptr<const CompiledGrammar> grammar = vocabulary().compile(json_grammar(entry.schema));
    for (const std::string_view text : entry.good)
      EXPECT_TRUE(accepts(grammar, text)) << entry.schema << " should take " << text;
    for (const std::string_view text : entry.bad)
      EXPECT_FALSE(accepts(grammar, text)) << entry.schema << " should refuse " << text;
  }
}

TEST(GrammarJson, Types) {
  check({
      {R"({})",
       {"null", "true", "1.5e-3", R"("x")", R"([1, {"a": []}])", "{}", R"({"a": {"b": [null]}})"},
       {"", "nul", "tru", "1.", ".5", "01", "+1", "'x'", "[1,]", "{,}", R"({"a"})", "NaN", "1 ", " 1"}},
      {"true", {"0"}, {"x"}},
      {R"({"type": "null"})", {"null"}, {"0"}},
      {R"({"type": ["boolean", "integer"]})", {"false", "-12"}, {"1.0", "-0", "null"}},
      {R"({"type": "string", "nullable": true})", {"null", R"("")"}, {"1"}},
      {R"({"type": "object"})", {"{}", R"({"a": 1, "b": "x"})"}, {"[]", R"({"a": 1,})", R"({"a\n": 1})"}},
      {R"({"type": "array"})", {"[]", "[1,2, 3]", "[ 1 ]", "[\n  1,\n  2\n]"}, {"[1 , 2]", "[1,  2]", "[1 2]"}},
  });
}

TEST(GrammarJson, Strings) {
  check({
      {R"({"type": "string"})",
       {R"("")", R"("é€😀")", R"("\u00e9\uD83D\uDE00\"\\\/\b\f\n\r\t")", "\"\x7F\""},
       {"\"\n\"", R"("\x")", R"("\ud83d")", R"("\ude00")", R"("\ud83d\u0041")", "\"\xC3\"", "\"\xED\xA0\x80\"",
        "\"\xC0\x80\"", "\"\xF4\x90\x80\x80\"", R"("</think>")", R"("｜DSML｜")"}},
      {R"({"type": "string", "minLength": 1, "maxLength": 3})",
       {R"("é")", R"("\uD83D\uDE00ab")", R"("\n😀")"},
       {R"("")", R"("abcd")", R"("\n\n\n\n")"}},
      {R"({"type": "string", "minLength": 2})", {R"("ab")", R"("abcdefgh")"}, {R"("a")"}},
      {R"({"type": "string", "maxLength": 0})", {R"("")"}, {R"("a")"}},
      {R"({"type": "string", "pattern": "^a\"\\\\n?$"})",
       {R"("a\"\\")", R"("a\"\\n")"},
       {R"("a"\")", R"("\u0061\"\\")"}},
      {R"({"type": "string", "pattern": "b", "maxLength": 3})", {R"("b")", R"("abc")"}, {R"("aaa")", R"("aaab")"}},
      {R"({"type": "string", "pattern": "^(</think>|x)$"})", {R"("x")"}, {R"("</think>")"}},
      {R"({"pattern": "^a", "allOf": [{"pattern": "b$"}]})", {R"("ab")", R"("axxb")"}, {R"("a")", R"("b")", "1"}},
      {R"({"type": "string", "format": "date", "pattern": "^20"})", {R"("2024-01-31")"}, {R"("1999-01-01")"}},
  });
}

TEST(GrammarJson, LiteralsEscapeWhatReadersTakeForMarkup) {
  check({
      {R"({"enum": ["</think>", "a｜DSML｜", "q\"\n", 1.50, 100, [1, {"a": null}], true]})",
       {R"("\u003c/think>")", R"("a\uff5cDSML｜")", R"("q\"\n")", "1.5", "100", R"([1, {"a": null}])", "true"},
       {R"("</think>")", R"("a｜DSML｜")", "1.50", "false", "[1]"}},
      {R"({"const": "x", "type": "string"})", {R"("x")"}, {R"("y")"}},
      {R"({"enum": [1, "a", null, 2.5], "type": ["integer", "string"]})", {"1", R"("a")"}, {"null", "2.5"}},
      {R"({"enum": [1, 5, 9], "minimum": 2, "exclusiveMaximum": 9})", {"5"}, {"1", "9"}},
      {R"({"enum": ["a", "abc"], "minLength": 2, "pattern": "c"})", {R"("abc")"}, {R"("a")"}},
      {R"({"enum": [1, 2], "allOf": [{"enum": [2, 3]}]})", {"2"}, {"1", "3"}},
  });
}

TEST(GrammarJson, Objects) {
  check({
      {R"({"properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": {"type": "boolean"}},
          "required": ["b"]})",
       {R"({"b": null})", R"({"a":1,"b":null})", R"({"a":1,"b":null,"c":true})", "{\n\t\"b\":\n\t\tnull\n}"},
       {"{}", R"({"a":1})", R"({"b":null,"a":1})", R"({"b":null,"d":1})", R"({"b":null,})", R"({"b":null,"b":null})"}},
      {R"({"type": "object", "properties": {}})", {"{}", "{ }"}, {R"({"a":1})"}},
      {R"({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"a":"x"})", R"({"a":"x","b":1,"ab":2})", R"({"b":1})", R"({"":0})"},
       {R"({"b":"x"})", R"({"b":1,"a":1})", R"({"\u0061":1})"}},
      {R"({"additionalProperties": false})", {"{}"}, {R"({"a":1})", "1"}},
      {R"({"required": ["x"], "additionalProperties": {"const": 1}})",
       {R"({"x":1})", R"({"x":1,"y":1})"},
       {"{}", R"({"x":2})"}},
      {R"({"properties": {"a": {}, "b": {}}, "minProperties": 1})", {R"({"a":1})", R"({"b":1})"}, {"{}"}},
      {R"({"properties": {"a": {}, "b": false}})", {"{}", R"({"a":1})"}, {R"({"b":1})"}},
      {R"({"properties": {"q\"\n</think>": {"const": 1}}, "required": ["q\"\n</think>"]})",
       {R"({"q\"\n\u003c/think>":1})"},
       {"{}", R"({"q\"\n</think>":1})"}},
      {R"({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                     {"properties": {"a": {"minimum": 5}, "b": {"const": 1}}}]})",
       {R"({"a":5})", R"({"a":7,"b":1})"},
       {R"({"a":4})", R"({"b":1})"}},
      {R"({"properties": {"a": {"const": 1}}, "allOf": [{"properties": {"b": {}}, "additionalProperties": false}]})",
       {"{}", R"({"b":1})"},
       {R"({"a":1})"}},
      {R"({"$ref": "#/$defs/x", "properties": {"b": {"const": 2}},
          "$defs": {"x": {"properties": {"a": {"const": 1}}}}})",
       {R"({"a":1,"b":2})", R"({"b":2})"},
       {R"({"b":2,"a":1})", R"({"a":2})"}},
      {R"({"unevaluatedProperties": false, "type": "object"})", {"{}"}, {R"({"a":1})"}},
  });
}

TEST(GrammarJson, Arrays) {
  check({
      {R"({"items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
       {"[1]", "[1, 2,3]"},
       {"[]", "[1,2,3,4]", "[null]"}},
      {R"({"items": {"const": 1}, "minItems": 2})", {"[1,1]", "[1,1,1,1,1]"}, {"[1]"}},
      {R"({"prefixItems": [{"const": 1}, {"const": 2}]})", {"[]", "[1]", "[1,2]"}, {"[2]", "[1,2,3]", "[1,]"}},
      {R"({"prefixItems": [{"const": 1}], "items": {"const": 0}, "minItems": 2})",
       {"[1,0]", "[1,0,0]"},
       {"[1]", "[0,0]"}},
      {R"({"items": [{"const": 1}], "additionalItems": {"const": 0}})", {"[]", "[1,0]"}, {"[0]"}},
      {R"({"items": false, "type": "array"})", {"[]"}, {"[1]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"items": {"minimum": 3}, "allOf": [{"items": {"type": "integer", "maximum": 4}}]})",
       {"[3,4]"},
       {"[2]", "[5]"}},
  });
}

TEST(GrammarJson, AlternativesAndRecursion) {
  check({
      {R"({"anyOf": [{"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "integer"}},
          "required": ["k", "x"]},
                     {"type": "object", "properties": {"k": {"const": "ab"}, "y": {"type": "null"}},
          "required": ["k", "y"]}]})",
       {R"({"k":"a","x":1})", R"({"k":"ab","y":null})"},
       {R"({"k":"a","y":null})", R"({"k":"ab","x":1})"}},
      {R"({"anyOf": [{"items": {"type": "integer"}}, {"items": {"type": ["integer", "null"]}, "maxItems": 2}]})",
       {"[1,2,3]", "[1,null]", "[null]"},
       {"[1,2,null]", "[null,1,2]"}},
      {R"({"anyOf": [{"minimum": 5}, {"maximum": 1}], "type": "integer"})", {"5", "1", "-7", "99"}, {"2", "4"}},
      {R"({"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]})",
       {"null", R"({"next":{"next":null}})"},
       {"{}", R"({"next":{}})"}},
      {R"({"$ref": "#/definitions/a~1b%25", "definitions": {"a/b%": {"const": 1}}})", {"1"}, {"2"}},
  });
}

TEST(GrammarJson, WhatCanNeverEndIsRefused) {
  for (const char* schema :
       {R"(false)", R"({"type": "integer", "minimum": 3, "maximum": 2})", R"({"enum": []})",
        R"({"allOf": [{"type": "null"}, {"type": "string"}]})",
        R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
        R"({"properties": {"a": false}, "required": ["a"]})", R"({"type": "array", "minItems": 1, "items": false})",
        R"({"type": "array", "minItems": 3, "maxItems": 2})", R"({"type": "string", "pattern": "^</think>$"})",
        R"({"type": "string", "pattern": "^a$", "minLength": 2})",
        R"({"type": "string", "minLength": 3, "maxLength": 2})",
        R"({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2})",
        R"({"type": "integer", "minimum": 1000000000000000000})"})
    EXPECT_THROW((void)vocabulary().compile(json_grammar(schema)), Error) << schema;
}

/// Every integer of a window around the bounds, for random bounds.
TEST(GrammarJson, IntegersAreExact) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 60; ++trial) {
    const int64_t low = static_cast<int64_t>(random() % 2400) - 1200;
    const int64_t high = low + static_cast<int64_t>(random() % 1100);
    const int64_t step = trial % 3 == 0 ? 1 + static_cast<int64_t>(random() % 20) : 1;
    const std::string schema = R"({"type": "integer", "minimum": )" + std::to_string(low) +
                               ", \"maximum\": " + std::to_string(high) + ", \"multipleOf\": " + std::to_string(step) +
                               "}";
    const bool is_possible = (high >= 0 ? high / step : -((-high + step - 1) / step)) * step >= low;
    if (!is_possible) continue;
    const std::shared_ptr<const CompiledGrammar> grammar = vocabulary().compile(json_grammar(schema));
    for (int64_t value = low - 150; value <= high + 150; ++value) {
      const bool is_valid = value >= low && value <= high && value % step == 0;
      ASSERT_EQ(accepts(grammar, std::to_string(value)), is_valid) << schema << value;
    }
  }
}

/// Every number with up to two decimals of a window, with zeros behind, for random bounds of up to two decimals.
TEST(GrammarJson, DecimalsAreExact) {
  std::mt19937 random(2);
  const auto text_of = [](int64_t hundredths) {
    const int64_t size = hundredths < 0 ? -hundredths : hundredths;
    const std::string fraction = std::to_string(size % 100 + 100).substr(1);
    return (hundredths < 0 ? "-" : "") + std::to_string(size / 100) + "." + fraction;
  };
  for (int trial = 0; trial < 40; ++trial) {
    const int64_t low = static_cast<int64_t>(random() % 4000) - 2000;
    const int64_t high = low + static_cast<int64_t>(random() % 1500) + 2;
    const bool excludes = trial % 2 == 0;
    const std::string schema = std::string(R"({"type": "number", ")") + (excludes ? "exclusiveMinimum" : "minimum") +
                               "\": " + text_of(low) + ", \"" + (excludes ? "exclusiveMaximum" : "maximum") +
                               "\": " + text_of(high) + "}";
    const std::shared_ptr<const CompiledGrammar> grammar = vocabulary().compile(json_grammar(schema));
    for (int64_t value = low - 120; value <= high + 120; ++value) {
      const bool is_valid = excludes ? value > low && value < high : value >= low && value <= high;
      const std::string text = text_of(value);
      ASSERT_EQ(accepts(grammar, text), is_valid) << schema << text;
      ASSERT_EQ(accepts(grammar, text + "000"), is_valid) << schema << text;
      if (value % 100 != 0) continue;
      ASSERT_EQ(accepts(grammar, text.substr(0, text.find('.'))), is_valid) << schema << text;
    }
  }
}

TEST(GrammarJson, Numbers) {
  check({
      {R"({"type": "number"})",
       {"0", "-0", "-1.25", "1e5", "1.5E-07", "999999999999999999"},
       {"1e999", "1e", "1.", "-", "00", "1234567890123456789"}},
      {R"({"type": "number", "minimum": 0})",
       {"0", "0.0", "17.5", "123456789012345678.5"},
       {"-0.5", "-0", "-1", "1e3"}},
      {R"({"type": "number", "exclusiveMaximum": 0})", {"-0.5", "-1"}, {"0", "-0", "-0.0", "0.1"}},
      {R"({"type": "number", "minimum": 0.5, "maximum": 0.5})", {"0.5", "0.50"}, {"0", "0.51", "0.49"}},
      {R"({"type": "number", "multipleOf": 0.01, "minimum": 0})", {"1", "1.5", "1.05"}, {"1.005", "-1"}},
      {R"({"type": "number", "multipleOf": 3, "minimum": 0, "maximum": 10})", {"0", "3", "9"}, {"10", "3.0", "4"}},
      {R"({"type": "integer", "minimum": 0, "exclusiveMinimum": true, "maximum": 2})", {"1", "2"}, {"0", "3"}},
      {R"({"type": "integer", "minimum": 0.5, "maximum": 2.5})", {"1", "2"}, {"0", "3"}},
      {R"({"type": "integer", "format": "int32"})", {"2147483647", "-2147483648"}, {"2147483648", "-2147483649"}},
      {R"({"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991})",
       {"9007199254740991", "-9007199254740991", "0"},
       {"9007199254740992", "-0"}},
  });
}

/// Inputs that blow up careless constructions.
TEST(GrammarJson, LimitsHoldAgainstHostileSchemas) {
  std::string optional = "{\"properties\": {";
  for (int i = 0; i < 300; ++i)
    optional +=
        (i == 0 ? "\"" : ", \"") + std::string("common_prefix_") + std::to_string(i) + "\": {\"type\": \"null\"}";
  const std::shared_ptr<const CompiledGrammar> wide = vocabulary().compile(json_grammar(optional + "}}"));
  EXPECT_TRUE(accepts(wide, R"({"common_prefix_3": null, "common_prefix_299": null})"));
  EXPECT_FALSE(accepts(wide, R"({"common_prefix_3": null, "common_prefix_2": null})"));

  std::string lengths = "{\"type\": \"object\", \"properties\": {";
  for (int i = 0; i < 40; ++i)
    lengths += (i == 0 ? "\"" : ", \"") + std::to_string(i) +
               "\": {\"type\": \"string\", \"maxLength\": " + std::to_string(16000 - i) + "}";
  EXPECT_THROW((void)vocabulary().compile(json_grammar(lengths + "}}")), Error);

  std::string deep = "{\"type\": \"null\"}";
  for (int i = 0; i < 120; ++i)
    deep = "{\"type\": \"array\", \"minItems\": 1, \"items\": " + deep + "}";
  EXPECT_THROW((void)vocabulary().compile(json_grammar(deep)), Error);
}

/// Readings whose number would double with each level if they were kept apart.
TEST(GrammarJson, AmbiguityDoesNotMultiply) {
  const std::shared_ptr<const CompiledGrammar> grammar = vocabulary().compile(json_grammar(
      R"({"$ref": "#/$defs/a", "$defs": {
        "a": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/a"}}, {"type": "array",
          "items": {"$ref": "#/$defs/b"}}]},
        "b": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/b"}}, {"type": "array",
          "items": {"$ref": "#/$defs/a"}},
                        {"type": "null"}]}}})"));
  EXPECT_TRUE(accepts(grammar, std::string(40, '[') + "null" + std::string(40, ']')));
  EXPECT_FALSE(accepts(grammar, std::string(40, '[') + "null" + std::string(39, ']')));
  EXPECT_FALSE(accepts(grammar, std::string(200, '[') + std::string(200, ']')));  // deeper than the limit of frames
}

}  // namespace
}  // namespace tidepool
