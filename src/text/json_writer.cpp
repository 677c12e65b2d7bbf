#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/check.h"
#include "text/json.h"

namespace tidepool {

namespace {

void append_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

void append_array(std::string& out, const Json::Array& values) {
  out += '[';
  std::string_view separator;
  for (const Json& value : values) {
    out += separator;
    append_json(out, value);
    separator = ", ";
  }
  out += ']';
}

void append_object(std::string& out, const Json::Object& members) {
  out += '{';
  std::string_view separator;
  for (const JsonMember& member : members) {
    out += separator;
    append_string(out, member.key);
    out += ": ";
    append_json(out, member.value);
    separator = ", ";
  }
  out += '}';
}

}  // namespace

std::string write_json(const Json& value) {
  std::string out;
  append_json(out, value);
  return out;
}

void append_json(std::string& out, const Json& value) {
  switch (value.kind()) {
    case Json::Kind::kNull: out += "null"; return;
    case Json::Kind::kBool: out += value.as_bool() ? "true" : "false"; return;
    case Json::Kind::kInteger: out += value.number_text() == "-0" ? "0" : value.number_text(); return;
    case Json::Kind::kReal: out += shortest_real(value.as_double()); return;
    case Json::Kind::kString: append_string(out, value.as_string()); return;
    case Json::Kind::kArray: append_array(out, value.as_array()); return;
    case Json::Kind::kObject: append_object(out, value.as_object()); return;
  }
}

void append_json_escaped(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += kHex[static_cast<unsigned char>(c) >> 4];
          out += kHex[static_cast<unsigned char>(c) & 15];
        } else {
          out += c;
        }
    }
  }
}

std::string shortest_real(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  // "-d.ddde-ddd" has at most 1 + 1 + 1 + 16 + 5 characters.
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  TIDEPOOL_CHECK(result.ec == std::errc(), "to_chars needs more than 32 characters");
  const std::string_view text(buffer.data(), static_cast<size_t>(result.ptr - buffer.data()));
  const size_t mark = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(mark + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(text);  // to_chars writes at least two exponent digits

  std::string digits;
  for (const char c : text.substr(0, mark)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  std::string out = text.front() == '-' ? "-" : "";
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  out += digits.substr(0, whole) + ".";
  return out + (digits.size() > whole ? digits.substr(whole) : "0");
}

}  // namespace tidepool
