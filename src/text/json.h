#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tidepool {

struct JsonMember;

/// A JSON value that keeps what a prompt must not lose: the order of keys and every digit of a number.
/// Objects are lists of members in order of first appearance. A number is its text; it is read as binary64 only when
/// it is written or asked for. Strings are UTF-8.
class Json {
 public:
  /// kInteger: a number without '.', exponent or name. kReal: every other number (NaN and infinities included).
  enum class Kind { kNull, kBool, kInteger, kReal, kString, kArray, kObject };
  using Array = std::vector<Json>;
  using Object = std::vector<JsonMember>;

  /// null
  Json();
  // Defined where JsonMember, which holds a Json, is complete.
  ~Json();
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;

  [[nodiscard]] static Json make_bool(bool value);
  [[nodiscard]] static Json make_integer(int64_t value);
  /// `text` must be a JSON number, or NaN, Infinity or -Infinity; the parser is the usual caller.
  [[nodiscard]] static Json make_number(std::string text);
  [[nodiscard]] static Json make_string(std::string value);
  [[nodiscard]] static Json make_array(Array values = {});
  [[nodiscard]] static Json make_object();

  [[nodiscard]] Kind kind() const;
  /// "null", "a boolean", "an integer", ...; for messages about a wrong type.
  [[nodiscard]] std::string_view kind_name() const;
  [[nodiscard]] bool is_null() const { return kind() == Kind::kNull; }
  [[nodiscard]] bool is_bool() const { return kind() == Kind::kBool; }
  [[nodiscard]] bool is_string() const { return kind() == Kind::kString; }
  [[nodiscard]] bool is_array() const { return kind() == Kind::kArray; }
  [[nodiscard]] bool is_object() const { return kind() == Kind::kObject; }

  /// The value; the kind must be the right one (checked).
  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] const std::string& as_string() const;
  [[nodiscard]] const Array& as_array() const;
  [[nodiscard]] Array& as_array();
  [[nodiscard]] const Object& as_object() const;
  [[nodiscard]] Object& as_object();

  /// The digits as they were read; the value must be a number.
  [[nodiscard]] const std::string& number_text() const;
  /// The integer, if this is one and it fits.
  [[nodiscard]] std::optional<int64_t> try_int64() const;
  /// Nearest binary64 of a number: infinity when it is too large, zero when it is too small, NaN for NaN.
  [[nodiscard]] double as_double() const;

  /// The member of that name; null pointer when this is no object or has none. Linear in the number of members.
  [[nodiscard]] const Json* find(std::string_view key) const;
  /// Replaces the member in place, or appends it. The value must be an object.
  void set(std::string_view key, Json value);

  friend bool operator==(const Json& a, const Json& b);

 private:
  struct Number {
    std::string text;
    bool is_integer = true;
  };
  std::variant<std::monostate, bool, Number, std::string, Array, Object> value_;
};

struct JsonMember {
  std::string key;
  Json value;
};

struct JsonParseOptions {
  /// Deepest nesting of arrays and objects. The writer and all walkers recurse, so this bounds their stack.
  size_t depth_max = 256;
  /// Longest text; the largest request body the server takes.
  size_t bytes_max = size_t{48} << 20;
  /// Accept the names NaN, Infinity and -Infinity as numbers, as the reference's decoder of tool arguments does.
  bool allows_nonfinite = false;
};

/// Reads one JSON value with white space around it. A repeated key keeps its first position and its last value. A
/// `\uXXXX` escape of half a surrogate pair becomes U+FFFD: clients that cut strings by UTF-16 units send such halves.
/// Throws Error(kInvalidArgument) with the byte position; kResourceExhausted when a limit of `options` is exceeded.
[[nodiscard]] Json parse_json(std::string_view text, const JsonParseOptions& options = {});

/// JSON as the reference prompt encoder writes it: separators ", " and ": ", non-ASCII as it is, integers with all
/// digits, reals with the shortest digits that read back the same.
[[nodiscard]] std::string write_json(const Json& value);
void append_json(std::string& out, const Json& value);

/// `text` with the escapes of a JSON string, without the quotes. Only bytes below 0x20, '"' and '\' change, so a text
/// may be escaped piece by piece, even inside a UTF-8 sequence.
void append_json_escaped(std::string& out, std::string_view text);

/// The shortest decimal form of a binary64 that reads back the same: positional with at least ".0" for decimal
/// exponents -4..15, otherwise like 1e-05 or 1.5e+16; NaN, Infinity, -Infinity.
[[nodiscard]] std::string shortest_real(double value);

}  // namespace tidepool
