#include "text/grammar_regex_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "text/unicode.h"

namespace tidepool {

namespace {

using NodeKind = RegexNode::Kind;
using Ranges = std::vector<CodePointRange>;

/// Ascending, without overlap.
Ranges joined(Ranges ranges) {
  std::ranges::sort(ranges, {}, &CodePointRange::first);
  Ranges out;
  for (const CodePointRange& range : ranges) {
    if (!out.empty() && range.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, range.last);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

Ranges inverted(const Ranges& ranges) {
  Ranges out;
  char32_t from = 0;
  for (const CodePointRange& range : joined(ranges)) {
    if (range.first > from) out.push_back({from, range.first - 1});
    from = range.last + 1;
  }
  if (from <= kCodePointMax) out.push_back({from, kCodePointMax});
  return out;
}

/// ECMA-262's LineTerminator, which `.` does not match.
const Ranges& line_ends() {
  static const Ranges ranges = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  return ranges;
}

/// The classes \d, \w and \s of ECMA-262; nothing for other letters.
std::optional<Ranges> class_of_letter(char32_t letter) {
  switch (letter) {
    case 'd': return Ranges{{'0', '9'}};
    case 'D': return inverted({{'0', '9'}});
    case 'w': return Ranges{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    case 'W': return inverted({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
    case 's':
    case 'S': {
      const Ranges spaces = {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                             {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
      return letter == 's' ? spaces : inverted(spaces);
    }
    default: return std::nullopt;
  }
}

RegexNode make_class(Ranges ranges) {
  RegexNode node;
  node.kind = NodeKind::kClass;
  node.ranges = joined(std::move(ranges));
  return node;
}

RegexNode make_group(NodeKind kind, std::vector<RegexNode> children) {
  if (children.size() == 1) return std::move(children.front());
  RegexNode node;
  node.kind = children.empty() ? NodeKind::kEmpty : kind;
  node.children = std::move(children);
  return node;
}

RegexNode make_repeat(RegexNode child, uint32_t repeat_min, uint32_t repeat_max) {
  RegexNode node;
  node.kind = NodeKind::kRepeat;
  node.children.push_back(std::move(child));
  node.repeat_min = repeat_min;
  node.repeat_max = repeat_max;
  return node;
}

class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern) {
    for (size_t at = 0; at < pattern.size();) {
      const Utf8Unit unit = read_utf8_unit(pattern, at);
      text_ += unit.code_point;
      at += unit.length;
    }
  }

  RegexNode parse() {
    RegexNode node = parse_alternatives();
    if (!at_end()) refuse("a ')' without its '('");
    return node;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("character {} of the pattern: {}", position_ + 1, what));
  }
  [[nodiscard]] bool at_end() const { return position_ == text_.size(); }
  [[nodiscard]] bool is_next(char32_t c) const { return !at_end() && text_[position_] == c; }
  bool take(char32_t c) {
    if (!is_next(c)) return false;
    ++position_;
    return true;
  }
  char32_t take_any() {
    if (at_end()) refuse("it ends too early");
    return text_[position_++];
  }

  RegexNode parse_alternatives() {
    if (++depth_ > kRegexDepthMax) refuse(fmt::format("groups are nested deeper than {}", kRegexDepthMax));
    std::vector<RegexNode> branches;
    do {
      std::vector<RegexNode> items;
      while (!at_end() && !is_next('|') && !is_next(')'))
        items.push_back(parse_item());
      branches.push_back(make_group(NodeKind::kConcat, std::move(items)));
    } while (take('|'));
    --depth_;
    return make_group(NodeKind::kAlternatives, std::move(branches));
  }

  RegexNode parse_item() {
    RegexNode atom = parse_atom();
    uint32_t repeat_min = 0;
    uint32_t repeat_max = 0;
    if (!parse_quantifier(repeat_min, repeat_max)) return atom;
    if (atom.kind == NodeKind::kStart || atom.kind == NodeKind::kEnd) refuse("an anchor cannot be repeated");
    (void)take('?');  // lazy: the same set of texts
    if (is_next('*') || is_next('+') || is_next('?')) refuse("two quantifiers behind each other");
    return make_repeat(std::move(atom), repeat_min, repeat_max);
  }

  bool parse_quantifier(uint32_t& repeat_min, uint32_t& repeat_max) {
    repeat_min = is_next('+') ? 1 : 0;
    repeat_max = is_next('?') ? 1 : RegexNode::kUnlimited;
    if (take('*') || take('+') || take('?')) return true;
    if (!is_next('{')) return false;
    const size_t begin = position_++;
    const std::optional<uint32_t> low = parse_count();
    if (!low) {  // a brace that begins no count stands for itself
      position_ = begin;
      return false;
    }
    repeat_min = *low;
    repeat_max = *low;
    if (take(',')) repeat_max = parse_count().value_or(RegexNode::kUnlimited);
    if (!take('}')) {
      position_ = begin;
      return false;
    }
    if (repeat_max < repeat_min) refuse("a repetition whose maximum is below its minimum");
    return true;
  }

  std::optional<uint32_t> parse_count() {
    std::optional<uint32_t> count;
    while (!at_end() && text_[position_] >= '0' && text_[position_] <= '9') {
      count = count.value_or(0) * 10 + static_cast<uint32_t>(take_any() - '0');
      if (*count > kRegexRepeatMax) refuse(fmt::format("a repetition of more than {}", kRegexRepeatMax));
    }
    return count;
  }

  RegexNode parse_atom() {
    const char32_t c = take_any();
    switch (c) {
      case '(': return parse_group();
      case '[': return parse_class();
      case '.': return make_class(inverted(line_ends()));
      case '\\': {
        const Ranges ranges = parse_escape();
        return make_class(ranges);
      }
      case '^': return anchor(NodeKind::kStart);
      case '$': return anchor(NodeKind::kEnd);
      case '*':
      case '+':
      case '?': --position_; refuse("a quantifier without anything to repeat");
      default: return make_class({{c, c}});
    }
  }

  static RegexNode anchor(NodeKind kind) {
    RegexNode node;
    node.kind = kind;
    return node;
  }

  RegexNode parse_group() {
    if (take('?')) {
      if (is_next('=') || is_next('!')) refuse("look-ahead is not supported");
      if (take('<')) {
        if (is_next('=') || is_next('!')) refuse("look-behind is not supported");
        while (take_any() != '>') {
        }
      } else if (!take(':')) {
        refuse("only (?:...) and (?<name>...) are supported of the groups that begin with (?");
      }
    }
    RegexNode node = parse_alternatives();
    if (!take(')')) refuse("a '(' is not closed");
    return node;
  }

  RegexNode parse_class() {
    const bool is_inverted = take('^');
    Ranges ranges;
    while (!take(']')) {
      const Ranges low = parse_class_atom();
      const bool is_single = low.size() == 1 && low[0].first == low[0].last;
      if (!is_single || !is_next('-') || position_ + 1 >= text_.size() || text_[position_ + 1] == ']') {
        ranges.insert(ranges.end(), low.begin(), low.end());
        continue;
      }
      ++position_;
      const Ranges high = parse_class_atom();
      if (high.size() != 1 || high[0].first != high[0].last) refuse("a class cannot be the end of a range");
      if (high[0].first < low[0].first) refuse("a range whose end comes before its beginning");
      ranges.push_back({low[0].first, high[0].first});
    }
    return make_class(is_inverted ? inverted(ranges) : ranges);
  }

  Ranges parse_class_atom() {
    const char32_t c = take_any();
    if (c != '\\') return {{c, c}};
    if (take('b')) return {{'\b', '\b'}};
    if (take('-')) return {{'-', '-'}};
    return parse_escape();
  }

  /// What stands behind a backslash.
  Ranges parse_escape() {
    const char32_t c = take_any();
    if (std::optional<Ranges> known = class_of_letter(c)) return *std::move(known);
    const auto single = [](char32_t value) { return Ranges{{value, value}}; };
    switch (c) {
      case 't': return single('\t');
      case 'n': return single('\n');
      case 'r': return single('\r');
      case 'f': return single('\f');
      case 'v': return single('\v');
      case '0': return single(0);
      case 'x': return single(parse_hex(2));
      case 'u': return single(parse_unicode_escape());
      default: break;
    }
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9');
    if (!is_letter) return single(c);
    --position_;
    switch (c) {
      case 'b':
      case 'B': refuse("word boundaries are not supported");
      case 'p':
      case 'P': refuse("Unicode properties are not supported; list the ranges");
      default: refuse("this escape is not supported (back-references are not)");
    }
  }

  char32_t parse_hex(size_t digits) {
    char32_t value = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char32_t c = take_any();
      const bool is_digit = c >= '0' && c <= '9';
      const char32_t lower = c | 0x20U;
      if (!is_digit && (lower < 'a' || lower > 'f')) refuse("a hexadecimal digit is missing");
      value = value * 16 + (is_digit ? c - '0' : lower - 'a' + 10);
    }
    return value;
  }

  char32_t parse_unicode_escape() {
    char32_t value = 0;
    if (take('{')) {
      while (!take('}')) {
        value = value * 16 + parse_hex(1);
        if (value > kCodePointMax) refuse("a code point beyond U+10FFFF");
      }
      return value;
    }
    value = parse_hex(4);
    const bool is_high = value >= 0xD800 && value < 0xDC00;
    if (!is_high || !take('\\') || !take('u')) return value;
    const char32_t low = parse_hex(4);
    if (low < 0xDC00 || low > 0xDFFF) refuse("half a surrogate pair");
    return 0x10000 + ((value - 0xD800) << 10U) + (low - 0xDC00);
  }

  std::u32string text_;
  size_t position_ = 0;
  size_t depth_ = 0;
};

RegexNode any_text() {
  return make_repeat(make_class({{0, kCodePointMax}}), 0, RegexNode::kUnlimited);
}

/// Puts any text where `node` begins (or ends, by `anchor`) without the anchor, and takes the anchor away.
RegexNode without_anchor(RegexNode node, NodeKind anchor) {
  if (node.kind == anchor) return {};
  const bool is_start = anchor == NodeKind::kStart;
  if (node.kind == NodeKind::kAlternatives) {
    for (RegexNode& child : node.children)
      child = without_anchor(std::move(child), anchor);
    return node;
  }
  if (node.kind == NodeKind::kConcat) {
    RegexNode& edge = is_start ? node.children.front() : node.children.back();
    const bool is_group = edge.kind == NodeKind::kConcat || edge.kind == NodeKind::kAlternatives || edge.kind == anchor;
    if (is_group) {
      edge = without_anchor(std::move(edge), anchor);
      return node;
    }
  }
  std::vector<RegexNode> children;
  if (is_start) children.push_back(any_text());
  children.push_back(std::move(node));
  if (!is_start) children.push_back(any_text());
  return make_group(NodeKind::kConcat, std::move(children));
}

bool has_anchor(const RegexNode& node) {
  return node.kind == NodeKind::kStart || node.kind == NodeKind::kEnd || std::ranges::any_of(node.children, has_anchor);
}

}  // namespace

RegexNode parse_regex(std::string_view pattern) {
  if (pattern.size() > kRegexBytesMax) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("the pattern is longer than {} bytes", kRegexBytesMax));
  }
  RegexNode node = RegexParser(pattern).parse();
  node = without_anchor(std::move(node), NodeKind::kStart);
  node = without_anchor(std::move(node), NodeKind::kEnd);
  if (has_anchor(node)) {
    throw Error(ErrorCode::kInvalidArgument,
                "^ and $ are supported only where they begin or end an alternative of the whole pattern");
  }
  return node;
}

}  // namespace tidepool
