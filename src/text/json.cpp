#include "text/json.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/check.h"

namespace tidepool {

namespace {

/// Whether a number that from_chars could not represent is huge (true) or tiny: the sign of its decimal order, which
/// the position of the first non-zero digit and the exponent give. Saturates far outside binary64's range.
bool is_beyond_one(std::string_view text) {
  constexpr int64_t kFar = 1'000'000'000'000;
  int64_t order = 0;  // decimal order of the first non-zero digit, exponent left aside
  bool seen_point = false;
  bool seen_digit = false;
  size_t i = 0;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      seen_point = true;
    } else if (text[i] >= '0' && text[i] <= '9') {
      if (seen_digit && !seen_point) ++order;
      if (!seen_digit && seen_point) --order;
      seen_digit = seen_digit || text[i] != '0';
    }
  }
  int64_t exponent = 0;
  bool is_negative = false;
  for (++i; i < text.size(); ++i) {
    if (text[i] == '-') is_negative = true;
    if (text[i] >= '0' && text[i] <= '9' && exponent < kFar) exponent = exponent * 10 + (text[i] - '0');
  }
  return order + (is_negative ? -exponent : exponent) >= 0;
}

double number_to_double(std::string_view text) {
  const bool is_negative = !text.empty() && text.front() == '-';
  const double sign = is_negative ? -1.0 : 1.0;
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity" || text == "-Infinity") return sign * std::numeric_limits<double>::infinity();
  double value = 0.0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec == std::errc::result_out_of_range) {
    return sign * (is_beyond_one(text) ? std::numeric_limits<double>::infinity() : 0.0);
  }
  TIDEPOOL_CHECK(result.ec == std::errc() && result.ptr == text.data() + text.size(), "not a number text");
  return value;
}

}  // namespace

Json::Json() = default;
Json::~Json() = default;
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;

Json Json::make_bool(bool value) {
  Json json;
  json.value_ = value;
  return json;
}

Json Json::make_integer(int64_t value) {
  return make_number(std::to_string(value));
}

Json Json::make_number(std::string text) {
  Json json;
  const bool is_integer = text.find_first_not_of("-0123456789") == std::string::npos;
  json.value_ = Number{std::move(text), is_integer};
  return json;
}

Json Json::make_string(std::string value) {
  Json json;
  json.value_ = std::move(value);
  return json;
}

Json Json::make_array(Array values) {
  Json json;
  json.value_ = std::move(values);
  return json;
}

Json Json::make_object() {
  Json json;
  json.value_ = Object();
  return json;
}

Json::Kind Json::kind() const {
  switch (value_.index()) {
    case 0: return Kind::kNull;
    case 1: return Kind::kBool;
    case 2: return std::get<Number>(value_).is_integer ? Kind::kInteger : Kind::kReal;
    case 3: return Kind::kString;
    case 4: return Kind::kArray;
    default: return Kind::kObject;
  }
}

std::string_view Json::kind_name() const {
  switch (kind()) {
    case Kind::kNull: return "null";
    case Kind::kBool: return "a boolean";
    case Kind::kInteger: return "an integer";
    case Kind::kReal: return "a real number";
    case Kind::kString: return "a string";
    case Kind::kArray: return "an array";
    case Kind::kObject: return "an object";
  }
  return "unknown";
}

bool Json::as_bool() const {
  TIDEPOOL_CHECK(is_bool(), kind_name());
  return std::get<bool>(value_);
}

const std::string& Json::as_string() const {
  TIDEPOOL_CHECK(is_string(), kind_name());
  return std::get<std::string>(value_);
}

const Json::Array& Json::as_array() const {
  TIDEPOOL_CHECK(is_array(), kind_name());
  return std::get<Array>(value_);
}

Json::Array& Json::as_array() {
  TIDEPOOL_CHECK(is_array(), kind_name());
  return std::get<Array>(value_);
}

const Json::Object& Json::as_object() const {
  TIDEPOOL_CHECK(is_object(), kind_name());
  return std::get<Object>(value_);
}

Json::Object& Json::as_object() {
  TIDEPOOL_CHECK(is_object(), kind_name());
  return std::get<Object>(value_);
}

const std::string& Json::number_text() const {
  TIDEPOOL_CHECK(std::holds_alternative<Number>(value_), kind_name());
  return std::get<Number>(value_).text;
}

std::optional<int64_t> Json::try_int64() const {
  if (kind() != Kind::kInteger) return std::nullopt;
  const std::string& text = number_text();
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

double Json::as_double() const {
  return number_to_double(number_text());
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const JsonMember& member : as_object()) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

void Json::set(std::string_view key, Json value) {
  for (JsonMember& member : as_object()) {
    if (member.key == key) {
      member.value = std::move(value);
      return;
    }
  }
  as_object().push_back({std::string(key), std::move(value)});
}

bool operator==(const Json& a, const Json& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Json::Kind::kNull: return true;
    case Json::Kind::kBool: return a.as_bool() == b.as_bool();
    case Json::Kind::kInteger:
    case Json::Kind::kReal: return a.number_text() == b.number_text();
    case Json::Kind::kString: return a.as_string() == b.as_string();
    case Json::Kind::kArray: return a.as_array() == b.as_array();
    case Json::Kind::kObject: break;
  }
  const Json::Object& left = a.as_object();
  const Json::Object& right = b.as_object();
  if (left.size() != right.size()) return false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i].key != right[i].key || !(left[i].value == right[i].value)) return false;
  }
  return true;
}

}  // namespace tidepool
