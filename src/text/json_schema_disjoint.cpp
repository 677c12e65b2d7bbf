#include <algorithm>

#include "base/error.h"
#include "text/json_schema.h"
#include "text/json_schema_flat.h"

namespace tidepool {

namespace {

/// Compares what validators would accept, which may be more than what is generated.
class DisjointCheck {
 public:
  explicit DisjointCheck(const JsonSchema& schema) : schema_(schema) {}

  [[nodiscard]] bool are_disjoint(uint32_t left, uint32_t right, size_t depth) const {
    constexpr size_t kDepthMax = 4;
    const SchemaNode& a = schema_.nodes[left];
    const SchemaNode& b = schema_.nodes[right];
    if (depth > kDepthMax) return false;
    const uint8_t common = a.valid_types & b.valid_types;
    if ((common & (kNullType | kArrayType)) != 0) return false;
    if ((common & kBoolType) != 0 && ((a.has_true && b.has_true) || (a.has_false && b.has_false) || is_open(a, b)))
      return false;
    if (!are_literals_apart(a, b) || !are_literals_apart(b, a)) return false;
    if ((common & (kIntegerType | kFractionType)) != 0 && !are_numbers_apart(a, b)) return false;
    if ((common & kStringType) != 0 && !are_strings_apart(a, b)) return false;
    return (common & kObjectType) == 0 || are_objects_apart(a, b, depth);
  }

 private:
  /// Whether one of them accepts types that it does not spell out.
  [[nodiscard]] static bool is_open(const SchemaNode& a, const SchemaNode& b) {
    const auto lacks_bool = [](const SchemaNode& node) {
      return (node.valid_types & kBoolType) != 0 && !node.has_true && !node.has_false;
    };
    return lacks_bool(a) || lacks_bool(b);
  }

  [[nodiscard]] static bool are_literals_apart(const SchemaNode& a, const SchemaNode& b) {
    return std::ranges::none_of(a.literals, [&](const Json& literal) { return may_accept(b, literal); });
  }

  [[nodiscard]] static bool may_accept(const SchemaNode& node, const Json& literal) {
    const uint8_t type = json_type_bit(literal);
    if ((node.valid_types & type) == 0) return false;
    const auto is_equal = [&](const Json& other) {
      if (json_type_bit(other) != type) return false;
      const bool is_number = (type & (kIntegerType | kFractionType)) != 0;
      return is_number ? other.as_double() == literal.as_double() : other == literal;
    };
    if (std::ranges::any_of(node.literals, is_equal)) return true;
    if (literal.is_string() && !node.strings.empty()) {
      return std::ranges::any_of(node.strings, [&](const StringSpec& spec) {
        return !spec.asserted_pattern || spec.asserted_pattern->accepts(literal.as_string());
      });
    }
    return !has_only_literals(node, type);
  }

  /// Whether all it accepts of these types is in its literals.
  [[nodiscard]] static bool has_only_literals(const SchemaNode& node, uint8_t types) {
    return node.numbers.empty() && node.strings.empty() && node.arrays.empty() && node.objects.empty() &&
           std::ranges::any_of(node.literals,
                               [&](const Json& literal) { return (json_type_bit(literal) & types) != 0; });
  }

  [[nodiscard]] static bool are_numbers_apart(const SchemaNode& a, const SchemaNode& b) {
    constexpr uint8_t kNumber = kIntegerType | kFractionType;
    if (a.numbers.empty() || b.numbers.empty()) return has_only_literals(a, kNumber) || has_only_literals(b, kNumber);
    const auto is_below = [](const NumberSpec& low, const NumberSpec& high) {
      if (!low.most || !high.least) return false;
      return *low.most < *high.least || (*low.most == *high.least && (low.excludes_most || high.excludes_least));
    };
    return std::ranges::all_of(a.numbers, [&](const NumberSpec& left) {
      return std::ranges::all_of(
          b.numbers, [&](const NumberSpec& right) { return is_below(left, right) || is_below(right, left); });
    });
  }

  [[nodiscard]] static bool are_strings_apart(const SchemaNode& a, const SchemaNode& b) {
    if (a.strings.empty() || b.strings.empty())
      return has_only_literals(a, kStringType) || has_only_literals(b, kStringType);
    const auto is_apart = [](const StringSpec& left, const StringSpec& right) {
      if (left.chars_max < right.chars_min || right.chars_max < left.chars_min) return true;
      if (!left.asserted_pattern || !right.asserted_pattern) return false;
      try {
        return left.asserted_pattern->intersect(*right.asserted_pattern).is_empty();
      } catch (const Error&) {
        return false;  // too large to tell
      }
    };
    return std::ranges::all_of(a.strings, [&](const StringSpec& left) {
      return std::ranges::all_of(b.strings, [&](const StringSpec& right) { return is_apart(left, right); });
    });
  }

  [[nodiscard]] bool are_objects_apart(const SchemaNode& a, const SchemaNode& b, size_t depth) const {
    if (a.objects.empty() || b.objects.empty()) return false;
    return std::ranges::all_of(a.objects, [&](const ObjectSpec& left) {
      return std::ranges::all_of(b.objects, [&](const ObjectSpec& right) { return are_apart(left, right, depth); });
    });
  }

  [[nodiscard]] bool are_apart(const ObjectSpec& a, const ObjectSpec& b, size_t depth) const {
    return needs_what_other_lacks(a, b) || needs_what_other_lacks(b, a) ||
           std::ranges::any_of(a.properties, [&](const ObjectSpec::Property& property) {
             const ObjectSpec::Property* other = find(b, property.name);
             const bool is_in_both = property.is_required && other != nullptr && other->is_required;
             return is_in_both && are_disjoint(property.node, other->node, depth + 1);
           });
  }

  [[nodiscard]] static bool needs_what_other_lacks(const ObjectSpec& a, const ObjectSpec& b) {
    return b.is_closed && std::ranges::any_of(a.properties, [&](const ObjectSpec::Property& property) {
             return property.is_required && find(b, property.name) == nullptr;
           });
  }

  [[nodiscard]] static const ObjectSpec::Property* find(const ObjectSpec& object, std::string_view name) {
    const auto place = std::ranges::find(object.properties, name, &ObjectSpec::Property::name);
    return place == object.properties.end() ? nullptr : &*place;
  }

  const JsonSchema& schema_;
};

}  // namespace

bool are_disjoint(const JsonSchema& schema, uint32_t a, uint32_t b) {
  return DisjointCheck(schema).are_disjoint(a, b, 0);
}

}  // namespace tidepool
