#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar_regex.h"
#include "text/json.h"

namespace tidepool {

/// Numbers that are generated have at most so many digits before and behind the point, so that a binary64 reader does
/// not round them across a bound.
inline constexpr int kIntegerDigitsMax = 18;
inline constexpr int kFractionDigitsMax = 15;

/// A decimal number, exactly: `whole` + `fraction` / 10^kFractionDigitsMax, neither of the other's opposite sign.
struct Decimal {
  int64_t whole = 0;
  int64_t fraction = 0;
  friend auto operator<=>(const Decimal&, const Decimal&) = default;  // NOLINT(*-nullptr,*-conversion)
};

/// 10^exponent; it must fit.
[[nodiscard]] constexpr int64_t power_of_ten(int exponent) {
  int64_t value = 1;
  for (int i = 0; i < exponent; ++i)
    value *= 10;
  return value;
}

/// `text` is a JSON number. Beyond 10^kIntegerDigitsMax no difference is made. Nothing when it has more than
/// kFractionDigitsMax decimal places.
[[nodiscard]] std::optional<Decimal> parse_decimal(std::string_view text);

struct NumberSpec {
  bool is_integer = false;
  std::optional<Decimal> least;
  std::optional<Decimal> most;
  bool excludes_least = false;
  bool excludes_most = false;
  uint32_t multiple_of = 1;                       ///< integers only
  uint32_t fraction_digits = kFractionDigitsMax;  ///< at most so many
};

struct StringSpec {
  uint32_t chars_min = 0;
  uint32_t chars_max = CharDfa::kUnlimited;
  /// Patterns and formats; the limits of length are not in it. Null: any text.
  std::shared_ptr<const CharDfa> pattern;
  /// Of `pattern` the part that every validator checks: without formats, which are mere annotations for some.
  std::shared_ptr<const CharDfa> asserted_pattern;
};

struct ArraySpec {
  std::vector<uint32_t> prefix;   ///< nodes of the first elements
  std::optional<uint32_t> items;  ///< node of the others; nothing: there are no others
  uint32_t count_min = 0;
  uint32_t count_max = 0;  ///< kUnlimitedCount: any number
};
inline constexpr uint32_t kUnlimitedCount = UINT32_MAX;

struct ObjectSpec {
  struct Property {
    std::string name;
    uint32_t node = 0;
    bool is_required = false;
  };
  std::vector<Property> properties;    ///< in the order in which they are written
  std::optional<uint32_t> additional;  ///< node of other members; nothing: there are none
  bool is_closed = false;              ///< the schema itself forbids others
  bool needs_member = false;           ///< {} is not enough
};

/// JSON types as a set. Integers and other numbers are told apart.
enum JsonTypeBit : uint8_t {
  kNullType = 1,
  kBoolType = 2,
  kIntegerType = 4,
  kFractionType = 8,
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kAllTypes = 127,
};

/// A schema: the union of everything it lists.
struct SchemaNode {
  bool has_null = false;
  bool has_true = false;
  bool has_false = false;
  std::vector<Json> literals;
  std::vector<NumberSpec> numbers;
  std::vector<StringSpec> strings;
  std::vector<ArraySpec> arrays;
  std::vector<ObjectSpec> objects;
  /// The types that a validator would let pass. More than those above when the schema leaves `type` out: then only the
  /// types that its other keywords speak of are generated.
  uint8_t valid_types = 0;
};

/// A JSON Schema read into alternatives without references, combinations and annotations. docs/structured_output.md
/// lists the keywords.
struct JsonSchema {
  static constexpr size_t kNodesMax = 20'000;
  static constexpr size_t kAlternativesMax = 512;  ///< of one schema, after anyOf and allOf are multiplied out
  static constexpr uint32_t kStringCharsMax = 16'384;
  static constexpr uint32_t kArrayCountMax = 4'096;

  std::vector<SchemaNode> nodes;
  uint32_t root = 0;
};

/// Reads a schema of the drafts 4 to 2020-12. `path` stands in front of the JSON pointers in messages, as in
/// "response_format.json_schema.schema". Throws Error(kInvalidArgument) naming path and keyword for what cannot be
/// honoured: a keyword that is not supported, one of the wrong type, a reference that leads nowhere, `oneOf` whose
/// alternatives are not clearly disjoint, a limit.
[[nodiscard]] JsonSchema parse_json_schema(const Json& schema, std::string_view path);

/// Whether no value that is generated for one node is valid for the other. False when that is not clear.
[[nodiscard]] bool are_disjoint(const JsonSchema& schema, uint32_t a, uint32_t b);

/// The pattern that stands for a `format` of strings; nothing for formats that are not supported.
[[nodiscard]] std::optional<std::string_view> string_format_pattern(std::string_view format);

}  // namespace tidepool
