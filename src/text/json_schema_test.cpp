#include "text/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

JsonSchema read(std::string_view text) {
  const Json document = parse_json(text);
  return parse_json_schema(document, "schema");
}

std::string schema_refusal(std::string_view text) {
  try {
    (void)read(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST(JsonSchema, NamesPathAndKeywordOfWhatItRefuses) {
  const std::vector<std::pair<std::string_view, std::string_view>> cases = {
      {R"({"not": {}})", "schema: not:"},
      {R"({"properties": {"a": {"if": {}}}})", "schema/properties/a: if:"},
      {R"({"items": {"then": {}}})", "schema/items: then:"},
      {R"({"anyOf": [{}, {"else": {}}]})", "schema/anyOf/1: else:"},
      {R"({"allOf": [{"dependentRequired": {}}]})", "schema/allOf/0: dependentRequired:"},
      {R"({"dependentSchemas": {}})", "dependentSchemas"},
      {R"({"dependencies": {}})", "dependencies"},
      {R"({"patternProperties": {"a": {}}})", "patternProperties"},
      {R"({"propertyNames": {"pattern": "a"}})", "propertyNames"},
      {R"({"contains": {}})", "contains"},
      {R"({"uniqueItems": true})", "uniqueItems"},
      {R"({"unevaluatedItems": false})", "unevaluatedItems"},
      {R"({"unevaluatedProperties": {}})", "unevaluatedProperties"},
      {R"({"$dynamicRef": "#a"})", "$dynamicRef"},
      {R"({"type": "integer", "multipleOf": 0.3})", "multipleOf"},
      {R"({"multipleOf": 101})", "multipleOf"},
      {R"({"multipleOf": 0})", "multipleOf"},
      {R"({"type": "string", "format": "iban"})", "format"},
      {R"_({"pattern": "(?=a)"})_", "pattern: character 3"},
      {R"({"minLength": 20000})", "minLength"},
      {R"({"minItems": 5000})", "minItems"},
      {R"({"type": "object", "minProperties": 2})", "minProperties"},
      {R"({"type": "object", "maxProperties": 2})", "maxProperties"},
      {R"({"type": "text"})", "type"},
      {R"({"type": 3})", "type"},
      {R"({"enum": 3})", "enum"},
      {R"({"const": 1e999})", "const"},
      {R"({"minimum": "3"})", "minimum"},
      {R"({"minimum": 0.12345678901234567})", "minimum"},
      {R"({"maxLength": -1})", "maxLength"},
      {R"({"maxLength": 1.5})", "maxLength"},
      {R"({"properties": []})", "properties"},
      {R"({"properties": {"a/b~": 3}})", "schema/properties/a~1b~0"},
      {R"({"required": "a"})", "required"},
      {R"({"required": [3]})", "required"},
      {R"({"anyOf": []})", "anyOf"},
      {R"({"anyOf": {}})", "anyOf"},
      {R"({"$ref": "other.json"})", "$ref"},
      {R"({"$ref": "#/$defs/a"})", "leads nowhere"},
      {R"({"$ref": "#name"})", "anchor"},
      {R"({"$ref": "#"})", "consists of itself"},
      {R"({"anyOf": [{"$ref": "#"}, {"type": "string"}]})", "consists of itself"},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]},
          "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}})",
       "consists of itself"},
      {R"({"enum": [[1]], "items": {}})", "enum"},
      {R"(3)", "a schema is an object or a boolean"},
  };
  for (const auto& [schema, message] : cases)
    EXPECT_THAT(schema_refusal(schema), HasSubstr(std::string(message))) << schema;
}

TEST(JsonSchema, AnnotationsAndUnknownKeywordsSayNothing) {
  EXPECT_EQ(schema_refusal(R"({"$schema": "x", "$id": "y", "title": 1, "description": [], "default": {}, "examples": 3,
      "$comment": "", "deprecated": true, "readOnly": true, "contentEncoding": "base64", "x-order": 1, "nullable": true,
      "discriminator": {"propertyName": "a"}, "uniqueItems": false, "propertyNames": {"type": "string"}})"),
            "accepted");
}

TEST(JsonSchema, OneOfNeedsAlternativesThatAreClearlyDisjoint) {
  const std::vector<std::pair<std::string_view, bool>> cases = {
      {R"([{"type": "string"}, {"type": "number"}])", true},
      {R"([{"type": "integer"}, {"type": "number"}])", false},
      {R"([{"const": "a"}, {"const": "b"}, {"const": 1}])", true},
      {R"([{"const": 1}, {"const": 1.0}])", false},
      {R"([{"const": "a"}, {"type": "string"}])", false},
      {R"([{"const": "a"}, {"type": "string", "pattern": "^b"}])", true},
      {R"([{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}])", true},
      {R"([{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}])", false},
      {R"([{"type": "string", "format": "date"}, {"type": "string", "format": "uuid"}])", false},
      {R"([{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}])", true},
      {R"([{"type": "integer", "maximum": 2}, {"type": "integer", "exclusiveMinimum": 2}])", true},
      {R"([{"type": "integer", "maximum": 2}, {"type": "integer", "minimum": 2}])", false},
      {R"([{"type": "array"}, {"type": "array", "minItems": 1}])", false},
      {R"([{"type": "boolean"}, {"const": true}])", false},
      {R"([{"const": false}, {"const": true}])", true},
      {R"([{"type": "null"}, {"type": ["null", "string"]}])", false},
      {R"([{"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"]},
           {"type": "object", "properties": {"k": {"const": 2}}, "required": ["k"]}])",
       true},
      {R"([{"type": "object", "properties": {"k": {"const": 1}}},
           {"type": "object", "properties": {"k": {"const": 2}}, "required": ["k"]}])",
       false},
      {R"([{"type": "object", "properties": {"a": {}}, "required": ["a"]},
           {"type": "object", "properties": {"b": {}}, "required": ["b"], "additionalProperties": false}])",
       true},
      {R"([{"type": "object", "properties": {"a": {}}, "required": ["a"]},
           {"type": "object", "properties": {"b": {}}, "required": ["b"]}])",
       false},
      {R"([{"properties": {"k": {"const": 1}}, "required": ["k"]},
           {"properties": {"k": {"const": 2}}, "required": ["k"]}])",
       false},  // a string satisfies both
  };
  for (const auto& [alternatives, is_fine] : cases) {
    const std::string message = schema_refusal("{\"oneOf\": " + std::string(alternatives) + "}");
    if (is_fine) {
      EXPECT_EQ(message, "accepted") << alternatives;
    } else {
      EXPECT_THAT(message, HasSubstr("schema/oneOf: oneOf: alternatives")) << alternatives;
    }
  }
}

TEST(JsonSchema, ReadsDecimals) {
  const auto is = [](std::string_view text, int64_t whole, int64_t fraction) {
    const std::optional<Decimal> value = parse_decimal(text);
    return value && *value == Decimal{whole, fraction};
  };
  EXPECT_TRUE(is("0", 0, 0));
  EXPECT_TRUE(is("-0.0", 0, 0));
  EXPECT_TRUE(is("12.5", 12, 500'000'000'000'000));
  EXPECT_TRUE(is("-0.005", 0, -5'000'000'000'000));
  EXPECT_TRUE(is("1e3", 1000, 0));
  EXPECT_TRUE(is("1.25E+1", 12, 500'000'000'000'000));
  EXPECT_TRUE(is("125e-1", 12, 500'000'000'000'000));
  EXPECT_TRUE(is("1e-15", 0, 1));
  EXPECT_TRUE(is("1e400", 1'000'000'000'000'000'000, 0));
  EXPECT_TRUE(is("-123456789012345678901", -1'000'000'000'000'000'000, 0));
  EXPECT_FALSE(parse_decimal("1e-16"));
  EXPECT_FALSE(parse_decimal("1e-999999999999"));
}

/// References that double at each level, alternatives that multiply, and wide or deep documents.
TEST(JsonSchema, LimitsHoldAgainstHostileSchemas) {
  std::string doubling = R"({"$ref": "#/$defs/s30", "$defs": {"s0": {"type": "string"})";
  for (int i = 1; i <= 30; ++i) {
    const std::string before = "{\"$ref\": \"#/$defs/s" + std::to_string(i - 1) + "\"}";
    doubling += ", \"s" + std::to_string(i) + "\": {\"allOf\": [" + before + ", " + before + "]}";
  }
  EXPECT_EQ(schema_refusal(doubling + "}}"), "accepted");  // the same schema twice is one

  std::string multiplied = "{\"allOf\": [";
  for (int i = 0; i < 12; ++i)
    multiplied += std::string(i == 0 ? "" : ", ") + R"({"anyOf": [{"minLength": )" + std::to_string(i) +
                  R"(}, {"maxLength": 99}]})";
  EXPECT_THAT(schema_refusal(multiplied + "]}"), HasSubstr("alternatives when they are multiplied out"));

  std::string wide = "{\"required\": [";
  for (int i = 0; i < 5000; ++i)
    wide += (i == 0 ? "\"" : ", \"") + std::to_string(i) + "\"";
  EXPECT_THAT(schema_refusal(wide + "]}"), HasSubstr("required"));

  std::string nodes = "{\"anyOf\": [{\"type\": \"null\"}";
  for (int i = 0; i < 8; ++i) {
    nodes += ", {\"type\": \"object\", \"properties\": {";
    for (int j = 0; j < 3000; ++j)
      nodes += (j == 0 ? "\"" : ", \"") + std::to_string(j) + "\": {}";
    nodes += ", \"z\": {\"type\": \"null\"}}}";
  }
  EXPECT_EQ(schema_refusal(nodes + "]}"), "accepted");  // equal schemas are one node
}

}  // namespace
}  // namespace tidepool
