#include "text/grammar_json.h"

#include <algorithm>

#include "base/check.h"
#include "text/dsml.h"

namespace tidepool {

namespace {

bool is_simple(const SchemaNode& node) {
  return node.numbers.empty() && node.strings.empty() && node.arrays.empty() && node.objects.empty();
}

bool is_one_string(const SchemaNode& node) {
  return node.strings.size() == 1 && node.numbers.empty() && node.arrays.empty() && node.objects.empty() &&
         node.literals.empty() && !node.has_null && !node.has_true && !node.has_false;
}

SchemaNode without_strings(SchemaNode node) {
  node.strings.clear();
  std::erase_if(node.literals, [](const Json& literal) { return literal.is_string(); });
  return node;
}

}  // namespace

bool SchemaRules::has_strings(uint32_t node) const {
  const SchemaNode& known = schema_.nodes[node];
  return !known.strings.empty() || std::ranges::any_of(known.literals, &Json::is_string);
}

bool SchemaRules::has_others(uint32_t node) const {
  const SchemaNode rest = without_strings(schema_.nodes[node]);
  return !is_simple(rest) || !rest.literals.empty() || rest.has_null || rest.has_true || rest.has_false;
}

void SchemaRules::add_value(RuleNfa& nfa, uint32_t from, uint32_t node, uint32_t to) {
  const SchemaNode& known = schema_.nodes[node];
  if (is_simple(known)) {
    // In place, so that constants tell the alternatives around them apart.
    add_literals(nfa, from, known, to);
    return;
  }
  if (is_one_string(known)) {
    nfa.add_call(from, shared_.json_string(known.strings.front()), to);
    return;
  }
  const auto [rule, is_new] = rules_.try_emplace(node, 0);
  if (is_new) {
    rule->second = shared_.builder().declare_rule();
    pending_.emplace_back(node, rule->second);
  }
  nfa.add_call(from, rule->second, to);
}

void SchemaRules::add_value_without_strings(RuleNfa& nfa, uint32_t from, uint32_t node, uint32_t to) {
  add_alternatives(nfa, from, without_strings(schema_.nodes[node]), to);
}

void SchemaRules::add_raw_strings(RuleNfa& nfa, uint32_t from, uint32_t node, uint32_t to) {
  for (const Json& literal : schema_.nodes[node].literals) {
    if (!literal.is_string()) continue;
    const std::string& text = literal.as_string();
    const bool is_markup = text.find(dsml::kThinkEnd) != std::string::npos || text.find("｜") != std::string::npos;
    if (!is_markup) nfa.add_text(from, text + shared_.parameter_closer(), to);
  }
  for (const StringSpec& spec : schema_.nodes[node].strings)
    nfa.add_call(from, shared_.raw_string(spec), to);
}

void SchemaRules::define_rules() {
  while (!pending_.empty()) {
    const auto [node, rule] = pending_.back();
    pending_.pop_back();
    RuleNfa nfa;
    add_alternatives(nfa, RuleNfa::kStart, schema_.nodes[node], RuleNfa::kEnd);
    shared_.builder().define_rule(rule, nfa);
  }
}

void SchemaRules::add_literals(RuleNfa& nfa, uint32_t from, const SchemaNode& node, uint32_t to) {
  if (node.has_null) nfa.add_text(from, "null", to);
  if (node.has_true) nfa.add_text(from, "true", to);
  if (node.has_false) nfa.add_text(from, "false", to);
  for (const Json& literal : node.literals)
    nfa.add_text(from, json_literal(literal, shared_.mark_form()), to);
}

void SchemaRules::add_alternatives(RuleNfa& nfa, uint32_t from, const SchemaNode& node, uint32_t to) {
  add_literals(nfa, from, node, to);
  for (const NumberSpec& number : node.numbers)
    add_number(nfa, from, number, to);
  for (const StringSpec& spec : node.strings)
    nfa.add_call(from, shared_.json_string(spec), to);
  for (const ArraySpec& array : node.arrays)
    add_array(nfa, from, array, to);
  for (const ObjectSpec& object : node.objects)
    add_object(nfa, from, object, to);
}

/// Behind a blank, or a newline and indentation, or nothing.
uint32_t SchemaRules::after_white_space(RuleNfa& nfa, uint32_t from) {
  const uint32_t to = nfa.add_state();
  nfa.add_empty(from, to);
  nfa.add_call(from, shared_.white_space(), to);
  return to;
}

void SchemaRules::add_array(RuleNfa& nfa, uint32_t from, const ArraySpec& array, uint32_t to) {
  // Elements that are told apart: by their schema, or because they are counted.
  const size_t counted =
      array.count_max == kUnlimitedCount ? std::max<size_t>(array.prefix.size(), array.count_min) : array.count_max;
  const auto element_at = [&](size_t index) {
    return index < array.prefix.size() ? std::optional<uint32_t>(array.prefix[index]) : array.items;
  };
  const uint32_t end = nfa.add_state();
  nfa.add_byte(end, ']', to);
  const uint32_t begin = after_white_space(nfa, nfa.add_text(from, "["));
  if (array.count_min == 0) nfa.add_empty(begin, end);
  uint32_t element = nfa.add_state();
  nfa.add_empty(begin, element);
  for (size_t i = 0;; ++i) {
    const std::optional<uint32_t> node = element_at(i);
    const bool is_full = array.count_max != kUnlimitedCount && i >= array.count_max;
    if (is_full || !node) return;
    const uint32_t behind = nfa.add_state();
    add_value(nfa, element, *node, behind);
    if (i + 1 >= array.count_min) nfa.add_empty(after_white_space(nfa, behind), end);
    const uint32_t comma = nfa.add_text(behind, ",");
    if (i >= counted) {
      nfa.add_empty(after_white_space(nfa, comma), element);
      return;
    }
    element = after_white_space(nfa, comma);
  }
}

void SchemaRules::add_object(RuleNfa& nfa, uint32_t from, const ObjectSpec& object, uint32_t to) {
  const size_t count = object.properties.size();
  const auto add_colon = [&](uint32_t state) { return after_white_space(nfa, nfa.add_text(state, ":")); };
  // keys[i]: the next key is that of property i or a later one. behind[i]: a member ended, and i are passed.
  std::vector<uint32_t> keys;
  std::vector<uint32_t> behind;
  for (size_t i = 0; i <= count; ++i) {
    keys.push_back(nfa.add_state());
    behind.push_back(nfa.add_state());
  }
  const uint32_t end = nfa.add_state();
  nfa.add_byte(end, '}', to);
  bool may_end = true;  // no property from here on is required
  for (size_t i = count + 1; i-- > 0;) {
    if (i < count) {
      const ObjectSpec::Property& property = object.properties[i];
      const std::string key = json_literal(Json::make_string(property.name), shared_.mark_form());
      add_value(nfa, add_colon(nfa.add_text(keys[i], key)), property.node, behind[i + 1]);
      if (!property.is_required) nfa.add_empty(keys[i], keys[i + 1]);
      may_end = may_end && !property.is_required;
    }
    const bool has_more = i < count || object.additional;
    if (has_more) nfa.add_empty(after_white_space(nfa, nfa.add_text(behind[i], ",")), keys[i]);
    if (may_end) nfa.add_empty(after_white_space(nfa, behind[i]), end);
  }
  if (object.additional) {
    std::vector<std::string> names;
    for (const ObjectSpec::Property& property : object.properties)
      names.push_back(property.name);
    const uint32_t colon = nfa.add_state();
    nfa.add_call(keys[count], shared_.json_key(names), colon);
    add_value(nfa, add_colon(colon), *object.additional, behind[count]);
  }
  const uint32_t begin = after_white_space(nfa, nfa.add_text(from, "{"));
  nfa.add_empty(begin, keys[0]);
  if (may_end && !object.needs_member) nfa.add_empty(begin, end);
}

}  // namespace tidepool
