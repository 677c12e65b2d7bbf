#include <fmt/format.h>

#include <algorithm>

#include "text/dsml.h"
#include "text/grammar_json.h"
#include "text/unicode.h"

namespace tidepool {

namespace {

constexpr char32_t kBar = 0xFF5C;

/// Whether any text may follow.
bool takes_all(const CharDfa& pattern, size_t index) {
  const auto only_edge = [&](size_t state) -> const CharDfa::Edge* {
    const std::vector<CharDfa::Edge>& edges = pattern.states()[state].edges;
    return edges.size() == 1 && edges[0].first == 0 && edges[0].last == kCodePointMax ? edges.data() : nullptr;
  };
  const CharDfa::Edge* edge = only_edge(index);
  if (edge == nullptr) return false;
  const CharDfa::Edge* next = only_edge(edge->target);
  return next != nullptr && next->target == edge->target;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

}  // namespace

std::string mark_bytes(MarkForm form) {
  return form == MarkForm::kText ? std::string(dsml::kMark) : std::string(1, static_cast<char>(kMarkByte));
}

std::vector<std::string_view> guarded_texts(MarkForm form) {
  if (form == MarkForm::kText) return {dsml::kThinkEnd};
  return {dsml::kThinkEnd, dsml::kMark};
}

std::string json_literal(const Json& value, MarkForm form) {
  // Outside its strings a JSON text has none of these.
  std::string text = write_json(value);
  replace_all(text, dsml::kThinkEnd, "\\u003c/think>");
  replace_all(text, form == MarkForm::kText ? dsml::kBar : dsml::kMark,
              form == MarkForm::kText ? "\\uff5c" : "\\uff5cDSML｜");
  return text;
}

std::string SharedRules::parameter_closer() const {
  return "</" + mark_bytes(form_) + " parameter>";
}

uint32_t SharedRules::white_space() {
  const auto [known, is_new] = single_.try_emplace("white space", 0);
  if (!is_new) return known->second;
  constexpr int kIndentMax = 32;
  RuleNfa nfa;
  nfa.add_byte(RuleNfa::kStart, ' ', RuleNfa::kEnd);
  uint32_t from = nfa.add_state();
  nfa.add_byte(RuleNfa::kStart, '\n', from);
  nfa.add_empty(from, RuleNfa::kEnd);
  for (int i = 0; i < kIndentMax; ++i) {
    const uint32_t next = nfa.add_state();
    nfa.add_byte(from, ' ', next);
    nfa.add_byte(from, '\t', next);
    nfa.add_empty(next, RuleNfa::kEnd);
    from = next;
  }
  known->second = builder_.declare_rule();
  builder_.define_rule(known->second, nfa);
  return known->second;
}

uint32_t SharedRules::utf8_char() {
  const auto [known, is_new] = single_.try_emplace("utf8", 0);
  if (!is_new) return known->second;
  RuleNfa nfa;
  if (form_ == MarkForm::kText) {
    nfa.add_code_points(RuleNfa::kStart, 0x80, kBar - 1, RuleNfa::kEnd);
    nfa.add_code_points(RuleNfa::kStart, kBar + 1, kCodePointMax, RuleNfa::kEnd);
  } else {
    nfa.add_code_points(RuleNfa::kStart, 0x80, kCodePointMax, RuleNfa::kEnd);
  }
  known->second = builder_.declare_rule();
  builder_.define_rule(known->second, nfa);
  return known->second;
}

/// A character of a JSON string that is not written as one byte: beyond ASCII, or an escape. Halves of surrogate pairs
/// come in pairs.
uint32_t SharedRules::json_char() {
  const auto [known, is_new] = single_.try_emplace("json", 0);
  if (!is_new) return known->second;
  RuleNfa nfa;
  nfa.add_call(RuleNfa::kStart, utf8_char(), RuleNfa::kEnd);
  const uint32_t escape = nfa.add_text(RuleNfa::kStart, "\\");
  for (const char letter : std::string_view("\"\\/bfnrt"))
    nfa.add_byte(escape, letter, RuleNfa::kEnd);
  const auto add_hex = [&](uint32_t from, int count, uint32_t to) {
    for (int i = 0; i < count; ++i) {
      const uint32_t next = i + 1 == count ? to : nfa.add_state();
      nfa.add_edge(from, '0', '9', next);
      nfa.add_edge(from, 'a', 'f', next);
      nfa.add_edge(from, 'A', 'F', next);
      from = next;
    }
  };
  const uint32_t first = nfa.add_text(escape, "u");
  const uint32_t three_left = nfa.add_state();
  nfa.add_edge(first, '0', '9', three_left);
  for (const auto& [from, to] : {std::pair{'a', 'c'}, std::pair{'e', 'f'}}) {
    nfa.add_edge(first, static_cast<uint8_t>(from), static_cast<uint8_t>(to), three_left);
    nfa.add_edge(first, static_cast<uint8_t>(from - 32), static_cast<uint8_t>(to - 32), three_left);
  }
  add_hex(three_left, 3, RuleNfa::kEnd);
  const uint32_t behind_d = nfa.add_state();
  nfa.add_byte(first, 'd', behind_d);
  nfa.add_byte(first, 'D', behind_d);
  const uint32_t two_left = nfa.add_state();
  nfa.add_edge(behind_d, '0', '7', two_left);
  add_hex(two_left, 2, RuleNfa::kEnd);
  const uint32_t high = nfa.add_state();
  const uint32_t behind_high = nfa.add_state();
  nfa.add_edge(behind_d, '8', '9', high);
  nfa.add_edge(behind_d, 'a', 'b', high);
  nfa.add_edge(behind_d, 'A', 'B', high);
  add_hex(high, 2, behind_high);
  const uint32_t low = nfa.add_text(behind_high, "\\u");
  const uint32_t low_d = nfa.add_state();
  nfa.add_byte(low, 'd', low_d);
  nfa.add_byte(low, 'D', low_d);
  const uint32_t low_two_left = nfa.add_state();
  nfa.add_edge(low_d, 'c', 'f', low_two_left);
  nfa.add_edge(low_d, 'C', 'F', low_two_left);
  add_hex(low_two_left, 2, RuleNfa::kEnd);
  known->second = builder_.declare_rule();
  builder_.define_rule(known->second, nfa);
  return known->second;
}

std::string SharedRules::closer(Form form) const {
  return form == Form::kRaw ? parameter_closer() : "\"";
}

void SharedRules::add_plain_char(RuleNfa& nfa, uint32_t from, Form form, uint32_t to) {
  if (form == Form::kRaw) {
    nfa.add_edge(from, 0x01, 0x7F, to);
    nfa.add_call(from, utf8_char(), to);
    return;
  }
  nfa.add_edge(from, 0x20, '"' - 1, to);
  nfa.add_edge(from, '"' + 1, '\\' - 1, to);
  nfa.add_edge(from, '\\' + 1, 0x7F, to);
  nfa.add_call(from, json_char(), to);
}

uint32_t SharedRules::counted_string(Limits limits, Form form) {
  const auto [known, is_new] = counted_.try_emplace({limits, form}, 0);
  if (!is_new) return known->second;
  const auto [chars_min, chars_max] = limits;
  const bool is_limited = chars_max != CharDfa::kUnlimited;
  const uint32_t count = is_limited ? chars_max : chars_min;
  const PlainKind kind = form == Form::kRaw ? PlainKind::kRaw : PlainKind::kJson;
  RuleNfa nfa;
  uint32_t state = form == Form::kRaw ? nfa.add_state() : nfa.add_text(RuleNfa::kStart, "\"");
  if (form == Form::kRaw) nfa.add_empty(RuleNfa::kStart, state);
  const uint32_t closing = nfa.add_state();  // behind the closer's first byte
  for (uint32_t i = 0; i <= count; ++i) {
    const std::string end = closer(form);
    if (i >= chars_min) nfa.add_byte(state, end.front(), end.size() == 1 ? RuleNfa::kEnd : closing);
    nfa.set_plain(state, {kind, is_limited ? chars_max - i : PlainRun::kUnlimited});
    if (i == count) {
      if (!is_limited) add_plain_char(nfa, state, form, state);
      break;
    }
    const uint32_t next = nfa.add_state();
    add_plain_char(nfa, state, form, next);
    state = next;
  }
  if (form == Form::kRaw) nfa.add_text(closing, closer(form).substr(1), RuleNfa::kEnd);
  known->second = builder_.declare_rule();
  builder_.define_rule(known->second, nfa);
  return known->second;
}

void SharedRules::add_edge(RuleNfa& nfa, uint32_t from, const CharDfa::Edge& edge, Form form, uint32_t to) {
  constexpr char32_t kAsciiEnd = 0x80;
  const auto add_range = [&](char32_t first, char32_t last) {
    first = std::max(first, edge.first);
    last = std::min(last, edge.last);
    if (first <= last) nfa.add_code_points(from, first, last, to);
  };
  if (form == Form::kRaw) {
    add_range(1, kAsciiEnd - 1);
  } else if (form == Form::kRawKey) {
    add_range(0x20, '"' - 1);
    add_range('"' + 1, '<' - 1);
    add_range('=', '=');
    add_range('>' + 1, kAsciiEnd - 1);
  } else {
    add_range(0x20, '"' - 1);
    add_range('"' + 1, '\\' - 1);
    add_range('\\' + 1, kAsciiEnd - 1);
  }
  if (form == Form::kJson) {
    // One way to write each: other control characters are left out.
    uint32_t escape = RuleNfa::kEnd;
    constexpr std::string_view kCharacters = "\"\\\b\f\n\r\t";
    constexpr std::string_view kLetters = "\"\\bfnrt";
    for (size_t i = 0; i < kCharacters.size(); ++i) {
      const auto character = static_cast<char32_t>(kCharacters[i]);
      if (character < edge.first || character > edge.last) continue;
      if (escape == RuleNfa::kEnd) escape = nfa.add_text(from, "\\");
      nfa.add_byte(escape, kLetters[i], to);
    }
  }
  if (edge.first <= kAsciiEnd && edge.last == kCodePointMax) {
    nfa.add_call(from, utf8_char(), to);
  } else if (form_ == MarkForm::kText) {
    add_range(kAsciiEnd, kBar - 1);
    add_range(kBar + 1, kCodePointMax);
  } else {
    add_range(kAsciiEnd, kCodePointMax);
  }
}

uint32_t SharedRules::pattern_string(const CharDfa& pattern, Form form) {
  RuleNfa nfa;
  std::vector<uint32_t> states;
  for (size_t i = 0; i < pattern.states().size(); ++i)
    states.push_back(nfa.add_state());
  const bool has_quote = form == Form::kJson || form == Form::kJsonKey;
  if (has_quote) {
    nfa.add_byte(RuleNfa::kStart, '"', states.front());
  } else {
    nfa.add_empty(RuleNfa::kStart, states.front());
  }
  const uint32_t closing = nfa.add_state();
  const std::string end = closer(form);
  for (size_t i = 0; i < states.size(); ++i) {
    const CharDfa::State& state = pattern.states()[i];
    for (const CharDfa::Edge& edge : state.edges)
      add_edge(nfa, states[i], edge, form, states[edge.target]);
    if (state.is_accepting) nfa.add_byte(states[i], end.front(), end.size() == 1 ? RuleNfa::kEnd : closing);
    if (has_quote && takes_all(pattern, i)) nfa.set_plain(states[i], {PlainKind::kJson, PlainRun::kUnlimited});
  }
  if (form == Form::kRaw) nfa.add_text(closing, end.substr(1), RuleNfa::kEnd);
  const uint32_t rule = builder_.declare_rule();
  builder_.define_rule(rule, nfa);
  return rule;
}

/// The pattern with the limits of length. Guarded texts are taken out here, as a pattern may leave no way around them.
CharDfa SharedRules::guarded(const StringSpec& spec) const {
  CharDfa pattern = *spec.pattern;
  if (spec.chars_min > 0 || spec.chars_max != CharDfa::kUnlimited)
    pattern = pattern.intersect(CharDfa::from_length(spec.chars_min, spec.chars_max));
  for (const std::string_view text : guarded_texts(form_))
    pattern = pattern.intersect(CharDfa::all_without(text));
  return pattern;
}

uint32_t SharedRules::json_string(const StringSpec& spec) {
  const Limits limits = {spec.chars_min, spec.chars_max};
  if (!spec.pattern) return counted_string(limits, Form::kJson);
  const auto [known, is_new] = patterns_.try_emplace({{spec.pattern.get(), limits}, Form::kJson}, 0);
  if (is_new) known->second = pattern_string(guarded(spec), Form::kJson);
  return known->second;
}

uint32_t SharedRules::raw_string(const StringSpec& spec) {
  const Limits limits = {spec.chars_min, spec.chars_max};
  if (!spec.pattern) return counted_string(limits, Form::kRaw);
  const auto [known, is_new] = patterns_.try_emplace({{spec.pattern.get(), limits}, Form::kRaw}, 0);
  if (is_new) known->second = pattern_string(guarded(spec), Form::kRaw);
  return known->second;
}

uint32_t SharedRules::json_key(const std::vector<std::string>& names) {
  return pattern_string(CharDfa::all_but(names), Form::kJsonKey);
}

uint32_t SharedRules::raw_key(const std::vector<std::string>& names) {
  return pattern_string(CharDfa::all_but(names), Form::kRawKey);
}

}  // namespace tidepool
