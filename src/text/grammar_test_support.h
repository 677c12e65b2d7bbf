#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar_matcher.h"
#include "text/json.h"

namespace tidepool {

/// The single bytes as ids 0 to 255, then some tokens of several bytes, then the mark, the end of the reasoning,
/// another control token and the end of the output. For tests.
struct TestVocabulary {
  explicit TestVocabulary(MarkForm form = MarkForm::kControlToken) {
    std::vector<std::string> texts;
    texts.reserve(512);
    for (int byte = 0; byte < 256; ++byte)
      texts.emplace_back(byte < kThinkEndByte ? std::string(1, static_cast<char>(byte)) : "");
    for (const std::string_view text :
         {"{\"",      "\":",   "\": ", "\", \"",   "\"}",     "}}",      "]]",         "[[",       "[{",
          "},",       ", ",    "null", "true",     "ab",      "abc",     "a b",        "12",       "345",
          "-1",       ".5",    "e1",   "\\u00",    "\\\"",    "d8",      "\n  ",       "</",       "<",
          "think>",   "</thi", "nk>",  "\">\n",    " invoke", " calls>", " parameter", " name=\"", "string=\"",
          "false\">", "é",     "\xC3", "\xE2\x82", "ÄÖÜ",     "｜",      "｜DSML",     "DSML｜",   "-0",
          "01",       "2024-", "\"a",  "a\"",      "\",",     "x\"}",    "\"b\":1",    "0,",       "1]"})
      texts.emplace_back(text);
    mark = static_cast<int32_t>(texts.size());
    texts.emplace_back(form == MarkForm::kControlToken ? std::string(1, static_cast<char>(kMarkByte)) : "");
    think_end = static_cast<int32_t>(texts.size());
    texts.emplace_back(1, static_cast<char>(kThinkEndByte));
    other = static_cast<int32_t>(texts.size());
    texts.emplace_back();
    end = static_cast<int32_t>(texts.size());
    texts.emplace_back();
    trie = std::make_shared<const TokenTrie>(std::move(texts), form);
  }

  [[nodiscard]] std::shared_ptr<const CompiledGrammar> compile(const OutputGrammar& grammar) const {
    return std::make_shared<const CompiledGrammar>(make_grammar(grammar, trie->mark_form()), trie,
                                                   std::vector<int32_t>{end});
  }

  int32_t mark = 0;
  int32_t think_end = 0;
  int32_t other = 0;
  int32_t end = 0;
  std::shared_ptr<const TokenTrie> trie;
};

inline OutputGrammar json_grammar(std::string_view schema) {
  OutputGrammar grammar;
  grammar.content = OutputGrammar::Content::kJson;
  grammar.schema = parse_json(schema);
  grammar.schema_path = "schema";
  return grammar;
}

inline const TestVocabulary& vocabulary() {
  static const TestVocabulary shared;
  return shared;
}

inline bool has_bit(const std::vector<uint64_t>& words, int32_t id) {
  return (words[static_cast<size_t>(id) / 64] >> (static_cast<size_t>(id) % 64) & 1U) != 0;
}

/// Draws tokens at temperature 1 from random logits, with a pull towards the end that grows so that every output has
/// one.
class RandomOutput {
 public:
  explicit RandomOutput(uint32_t seed) : random_(seed) {}

  /// A token of the mask.
  int32_t draw(const std::vector<uint64_t>& words, size_t written) {
    std::vector<int32_t> ids;
    std::vector<double> weights;
    std::normal_distribution<double> logit(0, 1);
    for (size_t i = 0; i < words.size() * 64; ++i) {
      if (!has_bit(words, static_cast<int32_t>(i))) continue;
      ids.push_back(static_cast<int32_t>(i));
      weights.push_back(std::exp(logit(random_)));
      if (written > kCalm && is_closing(i)) weights.back() *= 30;
    }
    std::discrete_distribution<size_t> pick(weights.begin(), weights.end());
    return ids.at(pick(random_));
  }

 private:
  static constexpr size_t kCalm = 60;
  [[nodiscard]] static bool is_closing(size_t id) {
    return id == '"' || id == '}' || id == ']' || id == '<' || id > 300;
  }
  std::mt19937 random_;
};

/// Whether `value` satisfies `schema`: a plain interpreter of the keywords that the tests use, and of nothing else.
class SchemaOracle {
 public:
  explicit SchemaOracle(const Json& document) : document_(document) {}
  [[nodiscard]] bool is_valid(const Json& value) const { return check(document_, value); }

 private:
  [[nodiscard]] bool check(const Json& schema, const Json& value) const {
    if (schema.is_bool()) return schema.as_bool();
    for (const JsonMember& member : schema.as_object()) {
      if (!check_keyword(schema, member.key, member.value, value)) return false;
    }
    return true;
  }

  [[nodiscard]] static bool has_type(std::string_view type, const Json& value) {
    const bool is_number = value.kind() == Json::Kind::kInteger || value.kind() == Json::Kind::kReal;
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_bool();
    if (type == "integer") return is_number && std::floor(value.as_double()) == value.as_double();
    if (type == "number") return is_number;
    if (type == "string") return value.is_string();
    if (type == "array") return value.is_array();
    return type == "object" && value.is_object();
  }

  [[nodiscard]] bool check_keyword(const Json& schema, std::string_view key, const Json& wanted,
                                   const Json& value) const {
    if (key == "type") {
      if (wanted.is_string()) return has_type(wanted.as_string(), value);
      return any(wanted, [&](const Json& type) { return has_type(type.as_string(), value); });
    }
    if (key == "enum") return any(wanted, [&](const Json& literal) { return literal == value; });
    if (key == "const") return wanted == value;
    if (key == "anyOf") return any(wanted, [&](const Json& inner) { return check(inner, value); });
    if (key == "oneOf") {
      size_t count = 0;
      for (const Json& inner : wanted.as_array())
        count += check(inner, value) ? 1 : 0;
      return count == 1;
    }
    if (key == "allOf") return !any(wanted, [&](const Json& inner) { return !check(inner, value); });
    if (key == "$ref") return check(resolve(wanted.as_string()), value);
    if (has_type("number", value)) return check_number(key, wanted, value.as_double());
    if (value.is_string()) return check_string(key, wanted, value.as_string());
    if (value.is_array()) return check_array(schema, key, wanted, value.as_array());
    return !value.is_object() || check_object(schema, key, wanted, value);
  }

  template <typename Test>
  [[nodiscard]] static bool any(const Json& list, const Test& test) {
    for (const Json& item : list.as_array())
      if (test(item)) return true;
    return false;
  }

  [[nodiscard]] const Json& resolve(std::string_view reference) const {
    const Json* at = &document_;
    for (reference.remove_prefix(1); !reference.empty();) {
      reference.remove_prefix(1);
      const size_t end = std::min(reference.find('/'), reference.size());
      at = at->find(reference.substr(0, end));
      reference.remove_prefix(end);
    }
    return *at;
  }

  [[nodiscard]] static bool check_number(std::string_view key, const Json& wanted, double value) {
    if (key == "minimum") return value >= wanted.as_double();
    if (key == "maximum") return value <= wanted.as_double();
    if (key == "exclusiveMinimum") return value > wanted.as_double();
    if (key == "exclusiveMaximum") return value < wanted.as_double();
    if (key != "multipleOf") return true;
    const double quotient = value / wanted.as_double();
    return std::abs(quotient - std::round(quotient)) <= 1e-9 * std::max(1.0, std::abs(quotient));
  }

  [[nodiscard]] static bool check_string(std::string_view key, const Json& wanted, const std::string& value) {
    size_t chars = 0;
    for (const char c : value)
      chars += (static_cast<uint8_t>(c) & 0xC0U) != 0x80U ? 1 : 0;
    if (key == "minLength") return chars >= static_cast<size_t>(wanted.as_double());
    if (key == "maxLength") return chars <= static_cast<size_t>(wanted.as_double());
    if (key == "pattern") return CharDfa::from_pattern(wanted.as_string()).accepts(value);
    if (key == "format") return CharDfa::from_pattern(*string_format_pattern(wanted.as_string())).accepts(value);
    return true;
  }

  [[nodiscard]] bool check_array(const Json& schema, std::string_view key, const Json& wanted,
                                 const Json::Array& value) const {
    if (key == "minItems") return value.size() >= static_cast<size_t>(wanted.as_double());
    if (key == "maxItems") return value.size() <= static_cast<size_t>(wanted.as_double());
    const Json* prefix = schema.find("prefixItems");
    const size_t prefix_size = prefix == nullptr ? 0 : prefix->as_array().size();
    for (size_t i = 0; i < value.size(); ++i) {
      if (key == "prefixItems" && i < prefix_size && !check(wanted.as_array()[i], value[i])) return false;
      if (key == "items" && i >= prefix_size && !check(wanted, value[i])) return false;
    }
    return true;
  }

  [[nodiscard]] bool check_object(const Json& schema, std::string_view key, const Json& wanted,
                                  const Json& value) const {
    const Json* properties = schema.find("properties");
    if (key == "minProperties") return value.as_object().size() >= static_cast<size_t>(wanted.as_double());
    if (key == "required")
      return !any(wanted, [&](const Json& name) { return value.find(name.as_string()) == nullptr; });
    for (const JsonMember& member : value.as_object()) {
      const Json* known = properties == nullptr ? nullptr : properties->find(member.key);
      if (key == "properties" && known != nullptr && !check(*known, member.value)) return false;
      if (key == "additionalProperties" && known == nullptr && !check(wanted, member.value)) return false;
    }
    return true;
  }

  const Json& document_;
};

/// A random schema of the supported keywords that some value satisfies. `depth`: of nesting.
class RandomSchema {
 public:
  explicit RandomSchema(uint32_t seed) : random_(seed) {}

  /// With definitions that refer to themselves.
  Json document() {
    Json schema = make(3);
    Json list =
        parse_json(R"({"type": "object", "properties": {"value": {"type": "integer", "minimum": -5, "maximum": 5},
        "next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}}, "required": ["value", "next"]})");
    Json definitions = Json::make_object();
    definitions.set("list", std::move(list));
    definitions.set("id", parse_json(R"({"type": "string", "pattern": "^[a-f]{2}-[0-9]+$"})"));
    schema.set("$defs", std::move(definitions));
    return schema;
  }

 private:
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }

  Json make(int depth) {
    switch (below(depth > 0 ? 13 : 8)) {
      case 0:
        return parse_json(pick({R"({"type": "boolean"})", R"({"type": ["null", "boolean"]})", R"({"const": null})"}));
      case 1: return integer();
      case 2:
        return parse_json(pick({R"({"type": "number"})", R"({"type": "number", "minimum": -1.5, "maximum": 2.25})",
                                R"({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})",
                                R"({"type": "number", "multipleOf": 0.01, "minimum": 0})"}));
      case 3: return string();
      case 4:
        return parse_json(pick({R"({"enum": ["red", "a\"b\n", "</think>", 3, null, 1.5]})", R"({"const": "ab"})",
                                R"({"enum": [[1, "x"], {"k": true}]})"}));
      case 5: return parse_json(R"({"$ref": "#/$defs/id"})");
      case 6:
        return parse_json(pick({R"({"type": "string", "format": "date"})", R"({"type": "string", "format": "uuid"})",
                                R"({"type": "string", "format": "ipv4"})"}));
      case 7: return integer();
      case 8: return parse_json(R"({"$ref": "#/$defs/list"})");
      case 9: return array(depth);
      case 10: return any_of(depth);
      default: return object(depth);
    }
  }

  std::string pick(std::initializer_list<std::string_view> texts) {
    return std::string(*(texts.begin() + below(static_cast<uint32_t>(texts.size()))));
  }

  Json integer() {
    Json schema = parse_json(R"({"type": "integer"})");
    const int64_t low = static_cast<int64_t>(below(4000)) - 2000;
    if (below(3) != 0) schema.set(pick({"minimum", "exclusiveMinimum"}), Json::make_integer(low));
    if (below(3) != 0) schema.set("maximum", Json::make_integer(low + 30 + below(1200)));
    if (below(4) == 0) schema.set("multipleOf", Json::make_integer(1 + below(12)));
    return schema;
  }

  Json string() {
    Json schema = parse_json(R"({"type": "string"})");
    const uint32_t low = below(4);
    if (below(2) == 0) schema.set("minLength", Json::make_integer(low));
    if (below(2) == 0) schema.set("maxLength", Json::make_integer(low + below(40)));
    if (below(4) == 0)
      schema.set("pattern", Json::make_string(pick({"^a+b?$", "[0-9]", "^(x|yy)*z", "é|\\.|\"", "^.{2,5}$"})));
    if (schema.find("pattern") != nullptr) {
      schema.set("minLength", Json::make_integer(0));
      schema.set("maxLength", Json::make_integer(40));
    }
    return schema;
  }

  Json array(int depth) {
    Json schema = parse_json(R"({"type": "array"})");
    schema.set("items", make(depth - 1));
    const uint32_t low = below(3);
    if (below(2) == 0) schema.set("minItems", Json::make_integer(low));
    if (below(2) == 0) schema.set("maxItems", Json::make_integer(low + below(3)));
    if (below(4) == 0) schema.set("prefixItems", Json::make_array({make(depth - 1), make(0)}));
    return schema;
  }

  Json object(int depth) {
    constexpr std::string_view kNames[] = {"a", "ab", "name", "é", "quo\"te", "next"};
    Json schema = parse_json(R"({"type": "object"})");
    Json properties = Json::make_object();
    Json::Array required;
    for (const std::string_view name : kNames) {
      if (below(2) == 0) continue;
      properties.set(name, make(depth - 1));
      if (below(2) == 0) required.push_back(Json::make_string(std::string(name)));
    }
    schema.set("properties", std::move(properties));
    if (!required.empty()) schema.set("required", Json::make_array(std::move(required)));
    if (below(3) == 0) schema.set("additionalProperties", below(2) == 0 ? Json::make_bool(false) : make(0));
    return schema;
  }

  Json any_of(int depth) {
    Json schema = Json::make_object();
    schema.set("anyOf", Json::make_array({make(depth - 1), make(depth - 1), make(0)}));
    return schema;
  }

  std::mt19937 random_;
};

}  // namespace tidepool
