#include "text/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "text/json_schema_flat.h"
#include "text/unicode.h"

namespace tidepool {

namespace {

bool is_boolean(const Json& value, bool wanted) {
  return value.is_bool() && value.as_bool() == wanted;
}

uint32_t count_chars(std::string_view text) {
  uint32_t count = 0;
  for (size_t at = 0; at < text.size(); ++count)
    at += read_utf8_unit(text, at).length;
  return count;
}

bool is_in_range(const NumberSpec& number, const Json& value) {
  const std::optional<Decimal> exact = parse_decimal(value.number_text());
  const bool is_bounded = number.least || number.most || number.multiple_of != 1;
  if (!exact) return !is_bounded && number.fraction_digits == kFractionDigitsMax;
  if (number.least && (*exact < *number.least || (number.excludes_least && *exact == *number.least))) return false;
  if (number.most && (*exact > *number.most || (number.excludes_most && *exact == *number.most))) return false;
  if (number.multiple_of != 1) return exact->fraction == 0 && exact->whole % number.multiple_of == 0;
  int64_t step = 1;
  for (auto digits = static_cast<int>(number.fraction_digits); digits < kFractionDigitsMax; ++digits)
    step *= 10;
  return exact->fraction % step == 0;
}

/// Turns schemas into nodes, one after the other: recursion in the document becomes an index.
class SchemaCompiler {
 public:
  SchemaCompiler(const Json& document, std::string_view path) : reader_(document, path) {
    schema_.root = node_of({&document});
  }

  JsonSchema compile() {
    size_t checked = 0;
    while (next_ < pending_.size()) {
      const std::vector<const Json*> schemas = *pending_[next_];
      const auto index = static_cast<uint32_t>(next_++);
      SchemaNode node;
      for (const FlatSchema& flat : reader_.expand(schemas))
        add_flat(flat, place_of(schemas), node);
      schema_.nodes[index] = std::move(node);
      // The alternatives of oneOf become nodes of their own, to be compared when everything is read.
      for (; checked < reader_.one_ofs().size(); ++checked)
        add_one_of(reader_.one_ofs()[checked]);
    }
    for (const auto& [path, nodes] : one_ofs_)
      check_disjoint(path, nodes);
    return std::move(schema_);
  }

 private:
  using Schemas = std::vector<const Json*>;

  std::string place_of(const Schemas& schemas) const {
    return schemas.empty() ? std::string("any value") : reader_.path_of(schemas.front());
  }

  /// The node of the values that satisfy all of these.
  uint32_t node_of(Schemas schemas) {
    std::erase_if(schemas, [](const Json* schema) {
      return is_boolean(*schema, true) || (schema->is_object() && schema->as_object().empty());
    });
    const auto [place, is_new] = index_.try_emplace(std::move(schemas), static_cast<uint32_t>(pending_.size()));
    if (!is_new) return place->second;
    if (pending_.size() == JsonSchema::kNodesMax) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: more than {} schemas in one document",
                                                           place_of(place->first), JsonSchema::kNodesMax));
    }
    pending_.push_back(&place->first);
    schema_.nodes.emplace_back();
    return place->second;
  }

  void add_one_of(const OneOf& one_of) {
    std::vector<uint32_t> nodes;
    for (const Json& alternative : one_of.schemas->as_array())
      nodes.push_back(node_of({&alternative}));
    one_ofs_.emplace_back(one_of.path, std::move(nodes));
  }

  void check_disjoint(const std::string& path, const std::vector<uint32_t>& nodes) const {
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (are_disjoint(schema_, nodes[i], nodes[j])) continue;
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("{}: oneOf: alternatives {} and {} are not clearly disjoint; use anyOf, or give them "
                                "different types or a required property with different constants",
                                path, j, i));
      }
    }
  }

  void add_flat(const FlatSchema& flat, const std::string& path, SchemaNode& node) {
    if (flat.is_impossible) return;
    if (flat.literals) {
      for (const Json& literal : *flat.literals)
        add_literal(flat, literal, path, node);
      return;
    }
    node.valid_types |= flat.types;
    uint8_t types = flat.types;
    if (!flat.has_type && flat.spoken_types != 0) types &= flat.spoken_types;
    node.has_null = node.has_null || (types & kNullType) != 0;
    node.has_true = node.has_true || (types & kBoolType) != 0;
    node.has_false = node.has_false || (types & kBoolType) != 0;
    if ((types & (kIntegerType | kFractionType)) != 0) {
      NumberSpec number = flat.number;
      number.is_integer = number.is_integer || (types & kFractionType) == 0;
      if (!number.is_integer || (types & kIntegerType) != 0) node.numbers.push_back(number);
    }
    if ((types & kStringType) != 0)
      node.strings.push_back({flat.chars_min, flat.chars_max, flat.pattern, flat.asserted_pattern});
    if ((types & kArrayType) != 0) add_array(flat, node);
    if ((types & kObjectType) != 0) add_object(flat, path, node);
  }

  static void add_literal(const FlatSchema& flat, const Json& literal, const std::string& path, SchemaNode& node) {
    const uint8_t type = json_type_bit(literal);
    if ((flat.types & type) == 0) return;
    if (literal.is_string()) {
      const uint32_t chars = count_chars(literal.as_string());
      if (chars < flat.chars_min || chars > flat.chars_max) return;
      if (flat.pattern && !flat.pattern->accepts(literal.as_string())) return;
    } else if ((type & (kIntegerType | kFractionType)) != 0) {
      if (!is_in_range(flat.number, literal) || (flat.number.is_integer && type != kIntegerType)) return;
    } else if (literal.is_array() || literal.is_object()) {
      const bool is_plain = flat.arrays.empty() && flat.objects.empty() && flat.required.empty() &&
                            flat.items_min == 0 && flat.items_max == kUnlimitedCount && flat.members_min == 0 &&
                            flat.members_max == kUnlimitedCount;
      if (!is_plain) SchemaReader::refuse(path, "enum", "arrays and objects cannot stand beside keywords about them");
    }
    node.valid_types |= type;
    if (literal.is_null()) {
      node.has_null = true;
    } else if (literal.is_bool()) {
      (literal.as_bool() ? node.has_true : node.has_false) = true;
    } else if (std::ranges::find(node.literals, literal) == node.literals.end()) {
      node.literals.push_back(literal);
    }
  }

  void add_array(const FlatSchema& flat, SchemaNode& node) {
    ArraySpec array;
    array.count_min = flat.items_min;
    array.count_max = flat.items_max;
    size_t prefix = 0;
    bool has_items = flat.arrays.empty();
    for (const FlatSchema::ArrayPart& part : flat.arrays) {
      prefix = std::max(prefix, part.prefix.size());
      has_items = has_items || part.items != nullptr;
    }
    const auto schemas_at = [&](size_t index) {
      Schemas schemas;
      for (const FlatSchema::ArrayPart& part : flat.arrays) {
        const Json* schema = index < part.prefix.size() ? part.prefix[index] : part.items;
        if (schema != nullptr) schemas.push_back(schema);
      }
      return schemas;
    };
    for (size_t i = 0; i < prefix; ++i)
      array.prefix.push_back(node_of(schemas_at(i)));
    if (has_items) array.items = node_of(schemas_at(prefix));
    node.arrays.push_back(std::move(array));
  }

  /// The schemas of member `name`; nothing when it is forbidden.
  static std::optional<Schemas> member_schemas(const FlatSchema& flat, std::string_view name) {
    Schemas schemas;
    for (const FlatSchema::ObjectPart& part : flat.objects) {
      const auto known = std::ranges::find(part.properties, name, [](const auto& property) { return property.first; });
      const Json* schema = known != part.properties.end() ? known->second : part.additional;
      if (schema == nullptr) continue;
      if (is_boolean(*schema, false)) return std::nullopt;
      schemas.push_back(schema);
    }
    return schemas;
  }

  void add_object(const FlatSchema& flat, const std::string& path, SchemaNode& node) {
    std::vector<std::string_view> names;
    std::map<std::string_view, bool> is_required;
    const auto add_name = [&](std::string_view name) {
      if (is_required.try_emplace(name, false).second) names.push_back(name);
    };
    for (const FlatSchema::ObjectPart& part : flat.objects) {
      for (const auto& [name, schema] : part.properties)
        add_name(name);
    }
    for (const std::string& name : flat.required) {
      add_name(name);
      is_required[name] = true;
    }
    ObjectSpec object;
    for (const std::string_view name : names) {
      std::optional<Schemas> schemas = member_schemas(flat, name);
      if (schemas) {
        object.properties.push_back({std::string(name), node_of(*std::move(schemas)), is_required[name]});
      } else if (is_required[name]) {
        return;  // required and forbidden: no object is valid
      }
    }
    set_additional(flat, object);
    check_member_counts(flat, path, object);
    node.objects.push_back(std::move(object));
  }

  void set_additional(const FlatSchema& flat, ObjectSpec& object) {
    Schemas schemas;
    bool is_said = false;
    bool has_list = false;
    for (const FlatSchema::ObjectPart& part : flat.objects) {
      has_list = has_list || part.has_list;
      if (part.additional == nullptr) continue;
      is_said = true;
      object.is_closed = object.is_closed || is_boolean(*part.additional, false);
      schemas.push_back(part.additional);
    }
    // Members that `properties` does not list would be the model's invention, so silence means none.
    const bool is_open = is_said ? !object.is_closed : !has_list && !flat.is_closed_unless_said;
    if (is_open) object.additional = node_of(std::move(schemas));
  }

  static void check_member_counts(const FlatSchema& flat, const std::string& path, ObjectSpec& object) {
    const auto required =
        static_cast<size_t>(std::ranges::count_if(object.properties, &ObjectSpec::Property::is_required));
    if (flat.members_min > std::max<size_t>(required, 1))
      SchemaReader::refuse(path, "minProperties", "is supported up to 1, or up to the number of required properties");
    object.needs_member = flat.members_min > required;
    if (flat.members_max == kUnlimitedCount) return;
    if (object.additional || flat.members_max < object.properties.size())
      SchemaReader::refuse(path, "maxProperties", "is supported only where `properties` cannot exceed it anyway");
  }

  SchemaReader reader_;
  JsonSchema schema_;
  std::map<Schemas, uint32_t> index_;
  std::vector<const Schemas*> pending_;  ///< keys of index_, by node
  size_t next_ = 0;
  std::vector<std::pair<std::string, std::vector<uint32_t>>> one_ofs_;
};

}  // namespace

JsonSchema parse_json_schema(const Json& schema, std::string_view path) {
  return SchemaCompiler(schema, path).compile();
}

}  // namespace tidepool
