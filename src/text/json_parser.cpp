#include <fmt/format.h>

#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "text/json.h"
#include "text/unicode.h"

// A parser of our own: the libraries at hand refuse 1e400 and NaN, which tool arguments in the wild contain and the
// reference accepts, and give up the digits of large integers. The tests compare it with one of those libraries.

namespace tidepool {

namespace {

/// Looks keys up while an object is read, so that an object with very many keys stays linear.
class KeyIndex {
 public:
  /// The position of `key` in `members`, or their count when it is new. `members` gets the key by the caller.
  size_t find_or_add(const Json::Object& members, const std::string& key) {
    if (members.size() < kIndexFrom) {
      for (size_t i = 0; i < members.size(); ++i) {
        if (members[i].key == key) return i;
      }
      return members.size();
    }
    if (positions_.empty()) {
      for (size_t i = 0; i < members.size(); ++i)
        positions_.emplace(members[i].key, i);
    }
    return positions_.emplace(key, members.size()).first->second;
  }

 private:
  /// Below this many keys comparing them all is cheaper than a table.
  static constexpr size_t kIndexFrom = 16;
  std::unordered_map<std::string, size_t> positions_;
};

class Parser {
 public:
  Parser(std::string_view text, const JsonParseOptions& options) : text_(text), options_(options) {}

  Json parse_document() {
    Json value = parse_value(0);
    skip_space();
    if (position_ != text_.size()) fail("text after the end of the value");
    return value;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("JSON, byte {}: {}", position_, what));
  }

  [[nodiscard]] bool is_at(char c) const { return position_ < text_.size() && text_[position_] == c; }

  void skip_space() {
    while (is_at(' ') || is_at('\n') || is_at('\r') || is_at('\t'))
      ++position_;
  }

  bool take(char c) {
    if (!is_at(c)) return false;
    ++position_;
    return true;
  }

  bool take_word(std::string_view word) {
    if (text_.substr(position_, word.size()) != word) return false;
    position_ += word.size();
    return true;
  }

  Json parse_value(size_t depth) {
    skip_space();
    if (position_ >= text_.size()) fail("the text ends where a value is expected");
    if (depth > options_.depth_max) {
      throw Error(ErrorCode::kResourceExhausted, fmt::format("JSON, byte {}: nested deeper than {} levels; flatten it",
                                                             position_, options_.depth_max));
    }
    const char c = text_[position_];
    if (c == '{') return parse_object(depth);
    if (c == '[') return parse_array(depth);
    if (c == '"') return Json::make_string(parse_string());
    if (take_word("true")) return Json::make_bool(true);
    if (take_word("false")) return Json::make_bool(false);
    if (take_word("null")) return {};
    return parse_number();
  }

  Json parse_object(size_t depth) {
    Json object = Json::make_object();
    Json::Object& members = object.as_object();
    KeyIndex index;
    ++position_;
    skip_space();
    if (take('}')) return object;
    while (true) {
      skip_space();
      if (!is_at('"')) fail("expected a key in double quotes");
      std::string key = parse_string();
      skip_space();
      if (!take(':')) fail("expected ':' after the key");
      Json value = parse_value(depth + 1);
      const size_t place = index.find_or_add(members, key);
      if (place == members.size()) {
        members.push_back({std::move(key), std::move(value)});
      } else {
        members[place].value = std::move(value);
      }
      skip_space();
      if (take('}')) return object;
      if (!take(',')) fail("expected ',' or '}' in an object");
    }
  }

  Json parse_array(size_t depth) {
    Json array = Json::make_array();
    ++position_;
    skip_space();
    if (take(']')) return array;
    while (true) {
      array.as_array().push_back(parse_value(depth + 1));
      skip_space();
      if (take(']')) return array;
      if (!take(',')) fail("expected ',' or ']' in an array");
    }
  }

  bool take_digits() {
    const size_t begin = position_;
    while (position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9')
      ++position_;
    return position_ > begin;
  }

  Json parse_number() {
    const size_t begin = position_;
    if (options_.allows_nonfinite) {
      for (const std::string_view name : {"NaN", "Infinity", "-Infinity"}) {
        if (take_word(name)) return Json::make_number(std::string(name));
      }
    }
    take('-');
    if (!take('0') && !take_digits()) {
      position_ = begin;
      fail("expected a value");
    }
    if (take('.') && !take_digits()) fail("expected a digit after the decimal point");
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      if (!take_digits()) fail("expected a digit in the exponent");
    }
    return Json::make_number(std::string(text_.substr(begin, position_ - begin)));
  }

  std::string parse_string() {
    ++position_;
    std::string out;
    while (true) {
      if (position_ >= text_.size()) fail("the text ends inside a string");
      const auto c = static_cast<unsigned char>(text_[position_]);
      if (c == '"') {
        ++position_;
        return out;
      }
      if (c == '\\') {
        parse_escape(out);
        continue;
      }
      if (c < 0x20) fail("control character inside a string; write it as an escape");
      const Utf8Unit unit = read_utf8_unit(text_, position_);
      if (unit.kind != Utf8Unit::Kind::kCodePoint) fail("a string is not valid UTF-8");
      out += text_.substr(position_, unit.length);
      position_ += unit.length;
    }
  }

  void parse_escape(std::string& out) {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    ++position_;
    const char name = position_ < text_.size() ? text_[position_] : '\0';
    if (name == 'u') {
      parse_unicode_escape(out);
      return;
    }
    const size_t which = name == '\0' ? std::string_view::npos : kNames.find(name);
    if (which == std::string_view::npos) fail("unknown escape in a string");
    out += kMeanings[which];
    ++position_;
  }

  /// The four hex digits after `\u` at `from`; nothing when there are not four.
  [[nodiscard]] std::optional<uint32_t> hex4(size_t from) const {
    if (text_.size() < 4 || from > text_.size() - 4) return std::nullopt;
    uint32_t value = 0;
    for (const char c : text_.substr(from, 4)) {
      uint32_t digit = 0;
      if (c >= '0' && c <= '9') {
        digit = static_cast<uint32_t>(c - '0');
      } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
        digit = static_cast<uint32_t>((c | 0x20) - 'a' + 10);
      } else {
        return std::nullopt;
      }
      value = value * 16 + digit;
    }
    return value;
  }

  void parse_unicode_escape(std::string& out) {
    const std::optional<uint32_t> first = hex4(position_ + 1);
    if (!first) fail("expected four hex digits after \\u");
    position_ += 5;
    if (*first < 0xD800 || *first > 0xDFFF) {
      append_utf8(*first, out);
      return;
    }
    const bool is_pair_possible = *first <= 0xDBFF && text_.substr(position_, 2) == "\\u";
    const std::optional<uint32_t> second = is_pair_possible ? hex4(position_ + 2) : std::nullopt;
    if (!second || *second < 0xDC00 || *second > 0xDFFF) {
      out += kReplacementText;
      return;
    }
    position_ += 6;
    append_utf8(0x10000 + ((*first - 0xD800) << 10) + (*second - 0xDC00), out);
  }

  std::string_view text_;
  const JsonParseOptions& options_;
  size_t position_ = 0;
};

}  // namespace

Json parse_json(std::string_view text, const JsonParseOptions& options) {
  if (text.size() > options.bytes_max) {
    throw Error(ErrorCode::kResourceExhausted,
                fmt::format("JSON of {} bytes exceeds the limit of {}", text.size(), options.bytes_max));
  }
  return Parser(text, options).parse_document();
}

}  // namespace tidepool
