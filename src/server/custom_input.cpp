#include "server/custom_input.h"

#include <charconv>
#include <utility>

#include "base/error.h"
#include "text/json.h"
#include "text/unicode.h"

namespace tidepool::responses {
namespace {

/// As the reader of calls writes the arguments of one parameter.
constexpr std::string_view kHead = R"({"input": ")";

bool is_high_surrogate(char32_t code) {
  return code >= 0xD800 && code < 0xDC00;
}
bool is_low_surrogate(char32_t code) {
  return code >= 0xDC00 && code < 0xE000;
}

/// The one string of the arguments, however they are laid out; else the arguments.
std::string whole_input(const std::string& arguments) {
  try {
    const Json value = parse_json(arguments);
    const Json* input = value.find("input");
    if (input != nullptr && input->is_string()) return input->as_string();
  } catch (const Error&) {
    return arguments;  // the model wrote no JSON
  }
  return arguments;
}

}  // namespace

std::string CustomInputReader::feed(std::string_view piece) {
  std::string out;
  for (const char c : piece)
    read(c, out);
  return out;
}

std::string CustomInputReader::finish() {
  std::string out;
  if (state_ == State::kHead || state_ == State::kOther) return whole_input(arguments_);
  flush_surrogate(out);
  return out;
}

void CustomInputReader::read(char c, std::string& out) {
  switch (state_) {
    case State::kHead: return read_head(c);
    case State::kText:
      if (c == '\\') {
        state_ = State::kEscape;
        return;
      }
      flush_surrogate(out);
      if (c == '"') {
        state_ = State::kEnd;
      } else {
        out += c;
      }
      return;
    case State::kEscape: return read_escape(c, out);
    case State::kUnicode: return read_unicode(c, out);
    case State::kEnd: return;
    case State::kOther: arguments_ += c; return;
  }
}

void CustomInputReader::read_head(char c) {
  arguments_ += c;
  if (!kHead.starts_with(arguments_)) {
    state_ = State::kOther;
  } else if (arguments_.size() == kHead.size()) {
    state_ = State::kText;
  }
}

void CustomInputReader::read_escape(char c, std::string& out) {
  if (c == 'u') {
    state_ = State::kUnicode;
    return;
  }
  flush_surrogate(out);
  state_ = State::kText;
  switch (c) {
    case 'b': out += '\b'; return;
    case 'f': out += '\f'; return;
    case 'n': out += '\n'; return;
    case 'r': out += '\r'; return;
    case 't': out += '\t'; return;
    default: out += c;  // a quote, a slash or a backslash
  }
}

void CustomInputReader::read_unicode(char c, std::string& out) {
  digits_ += c;
  if (digits_.size() < 4) return;
  uint32_t value = kReplacementCharacter;
  std::from_chars(digits_.data(), digits_.data() + digits_.size(), value, 16);
  digits_.clear();
  state_ = State::kText;
  const char32_t code = value;
  if (high_ != 0 && is_low_surrogate(code))
    return append_utf8(0x10000 + ((std::exchange(high_, 0) - 0xD800) << 10) + (code - 0xDC00), out);
  flush_surrogate(out);
  if (is_high_surrogate(code)) {
    high_ = code;
  } else {
    append_utf8(is_low_surrogate(code) ? kReplacementCharacter : code, out);
  }
}

/// Half a pair that nothing follows.
void CustomInputReader::flush_surrogate(std::string& out) {
  if (std::exchange(high_, 0) != 0) append_utf8(kReplacementCharacter, out);
}

}  // namespace tidepool::responses
