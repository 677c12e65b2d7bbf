#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/grammar_automaton.h"
#include "text/json_schema.h"

namespace tidepool {

/// How the mark of tool-call tags reaches the output.
enum class MarkForm : uint8_t {
  kControlToken,  ///< as one token, kMarkByte in grammars
  kText,          ///< as text, with a vocabulary that has no such token; then U+FF5C occurs nowhere else
};

/// The mark as a grammar's bytes.
[[nodiscard]] std::string mark_bytes(MarkForm form);

/// Texts that must not occur in an answer, because whoever reads the output would take them for markup: the end of the
/// reasoning, and the mark of tags.
[[nodiscard]] std::vector<std::string_view> guarded_texts(MarkForm form);

/// `value` as a grammar writes it: like write_json, with an escape inside guarded texts.
[[nodiscard]] std::string json_literal(const Json& value, MarkForm form);

/// Appends the ways to write the numbers of `number`.
void add_number(RuleNfa& nfa, uint32_t from, const NumberSpec& number, uint32_t to);

/// Rules that all schemas of a grammar share; each is made when it is first asked for.
class SharedRules {
 public:
  /// `builder` must outlive the object.
  SharedRules(GrammarBuilder& builder, MarkForm form) : builder_(builder), form_(form) {}

  [[nodiscard]] GrammarBuilder& builder() { return builder_; }
  [[nodiscard]] MarkForm mark_form() const { return form_; }

  /// A blank, or a newline with some indentation.
  [[nodiscard]] uint32_t white_space();
  /// A string in quotes.
  [[nodiscard]] uint32_t json_string(const StringSpec& spec);
  /// A key in quotes that is none of these and has no escapes.
  [[nodiscard]] uint32_t json_key(const std::vector<std::string>& names);
  /// Text as it is, up to and with the tag that closes a parameter.
  [[nodiscard]] uint32_t raw_string(const StringSpec& spec);
  /// A parameter's key that is none of these, with the quote behind it.
  [[nodiscard]] uint32_t raw_key(const std::vector<std::string>& names);
  /// A character of more than one byte.
  [[nodiscard]] uint32_t utf8_char();
  /// "</mark parameter>".
  [[nodiscard]] std::string parameter_closer() const;

 private:
  enum class Form : uint8_t { kJson, kRaw, kJsonKey, kRawKey };
  using Limits = std::pair<uint32_t, uint32_t>;

  uint32_t json_char();
  [[nodiscard]] std::string closer(Form form) const;
  uint32_t counted_string(Limits limits, Form form);
  uint32_t pattern_string(const CharDfa& pattern, Form form);
  void add_plain_char(RuleNfa& nfa, uint32_t from, Form form, uint32_t to);
  void add_edge(RuleNfa& nfa, uint32_t from, const CharDfa::Edge& edge, Form form, uint32_t to);
  [[nodiscard]] CharDfa guarded(const StringSpec& spec) const;

  GrammarBuilder& builder_;
  MarkForm form_;
  std::map<std::string_view, uint32_t> single_;
  std::map<std::pair<Limits, Form>, uint32_t> counted_;
  std::map<std::pair<std::pair<const CharDfa*, Limits>, Form>, uint32_t> patterns_;
};

/// The rules of one schema.
class SchemaRules {
 public:
  /// Both must outlive the object.
  SchemaRules(SharedRules& shared, const JsonSchema& schema) : shared_(shared), schema_(schema) {}

  /// The JSON values of a node.
  void add_value(RuleNfa& nfa, uint32_t from, uint32_t node, uint32_t to);
  /// Those that are no strings; nothing when there are none.
  void add_value_without_strings(RuleNfa& nfa, uint32_t from, uint32_t node, uint32_t to);
  [[nodiscard]] bool has_strings(uint32_t node) const;
  [[nodiscard]] bool has_others(uint32_t node) const;
  /// The strings of a node as they are, up to and with the tag that closes a parameter. Literals that cannot be written
  /// so are left out.
  void add_raw_strings(RuleNfa& nfa, uint32_t from, uint32_t node, uint32_t to);
  /// Defines the rules that were called.
  void define_rules();

 private:
  void define(uint32_t node, uint32_t rule);
  void add_alternatives(RuleNfa& nfa, uint32_t from, const SchemaNode& node, uint32_t to);
  void add_literals(RuleNfa& nfa, uint32_t from, const SchemaNode& node, uint32_t to);
  void add_array(RuleNfa& nfa, uint32_t from, const ArraySpec& array, uint32_t to);
  void add_object(RuleNfa& nfa, uint32_t from, const ObjectSpec& object, uint32_t to);
  [[nodiscard]] uint32_t after_white_space(RuleNfa& nfa, uint32_t from);

  SharedRules& shared_;
  const JsonSchema& schema_;
  std::map<uint32_t, uint32_t> rules_;                  ///< by node
  std::vector<std::pair<uint32_t, uint32_t>> pending_;  ///< node and rule
};

}  // namespace tidepool
