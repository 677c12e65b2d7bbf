#include "text/json_schema_flat.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "base/error.h"

namespace tidepool {

namespace {

constexpr size_t kReadsMax = 200'000;
/// Schemas that hold at the same place, and entries of one list: both are searched linearly.
constexpr size_t kListMax = 4096;

std::string escaped_pointer(std::string_view key) {
  std::string out = "/";
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/// One token of a JSON pointer in a URI fragment.
std::string unescaped_pointer(std::string_view token) {
  std::string plain;
  for (size_t i = 0; i < token.size(); ++i) {
    const bool is_escape =
        token[i] == '%' && i + 2 < token.size() && hex_value(token[i + 1]) >= 0 && hex_value(token[i + 2]) >= 0;
    plain += is_escape ? static_cast<char>(hex_value(token[i + 1]) * 16 + hex_value(token[i + 2])) : token[i];
    if (is_escape) i += 2;
  }
  std::string out;
  for (size_t i = 0; i < plain.size(); ++i) {
    const bool is_escape = plain[i] == '~' && i + 1 < plain.size() && (plain[i + 1] == '0' || plain[i + 1] == '1');
    out += !is_escape ? plain[i] : plain[i + 1] == '0' ? '~' : '/';
    if (is_escape) ++i;
  }
  return out;
}

std::optional<uint8_t> type_of_name(std::string_view name) {
  if (name == "null") return kNullType;
  if (name == "boolean") return kBoolType;
  if (name == "integer") return kIntegerType;
  if (name == "number") return kIntegerType | kFractionType;
  if (name == "string") return kStringType;
  if (name == "array") return kArrayType;
  if (name == "object") return kObjectType;
  return std::nullopt;
}

bool is_false(const Json& value) {
  return value.is_bool() && !value.as_bool();
}

}  // namespace

std::optional<Decimal> parse_decimal(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative) text.remove_prefix(1);
  const size_t exponent_at = std::min(text.find_first_of("eE"), text.size());
  int64_t exponent = 0;  // of the point, from the left end of `digits`
  if (exponent_at < text.size()) {
    constexpr int64_t kFar = 1'000'000'000;
    exponent =
        std::clamp<int64_t>(std::strtoll(std::string(text.substr(exponent_at + 1)).c_str(), nullptr, 10), -kFar, kFar);
  }
  text = text.substr(0, exponent_at);
  exponent += static_cast<int64_t>(std::min(text.find('.'), text.size()));
  std::string digits(text);
  std::erase(digits, '.');
  while (digits.ends_with('0'))
    digits.pop_back();
  const size_t zeros = std::min(digits.find_first_not_of('0'), digits.size());
  digits.erase(0, zeros);
  exponent -= static_cast<int64_t>(zeros);
  if (digits.empty()) return Decimal{};
  if (static_cast<int64_t>(digits.size()) > exponent + kFractionDigitsMax) return std::nullopt;
  Decimal value;
  if (exponent > kIntegerDigitsMax) {
    value.whole = power_of_ten(kIntegerDigitsMax);
  } else {
    for (int64_t i = 0; i < exponent + kFractionDigitsMax; ++i) {
      const int64_t digit = i < static_cast<int64_t>(digits.size()) ? digits[static_cast<size_t>(i)] - '0' : 0;
      int64_t& part = i < exponent ? value.whole : value.fraction;
      part = part * 10 + digit;
    }
    // Digits that begin behind the point: the zeros before them are not in `digits`, so they just weigh less.
  }
  if (is_negative) value = {-value.whole, -value.fraction};
  return value;
}

uint8_t json_type_bit(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::kNull: return kNullType;
    case Json::Kind::kBool: return kBoolType;
    case Json::Kind::kInteger: return kIntegerType;
    case Json::Kind::kReal: return std::floor(value.as_double()) == value.as_double() ? kIntegerType : kFractionType;
    case Json::Kind::kString: return kStringType;
    case Json::Kind::kArray: return kArrayType;
    case Json::Kind::kObject: return kObjectType;
  }
  return 0;
}

SchemaReader::SchemaReader(const Json& document, std::string_view path) : document_(document), root_path_(path) {
  note_path(document, root_path_);
}

void SchemaReader::refuse(const std::string& path, std::string_view keyword, std::string_view what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}: {}", path, keyword, what));
}

const Json* SchemaReader::resolve(std::string_view reference, const std::string& path) {
  if (!reference.starts_with('#')) {
    refuse(path, "$ref",
           fmt::format("\"{}\" leads out of the schema; only references that begin with # are supported", reference));
  }
  std::string_view pointer = reference.substr(1);
  if (!pointer.empty() && pointer.front() != '/')
    refuse(path, "$ref", fmt::format("\"{}\" names an anchor; write a JSON pointer instead", reference));
  const Json* at = &document_;
  std::string place = root_path_;
  while (!pointer.empty()) {
    pointer.remove_prefix(1);
    const std::string token = unescaped_pointer(pointer.substr(0, pointer.find('/')));
    pointer.remove_prefix(std::min(pointer.find('/'), pointer.size()));
    const Json* next = at->find(token);
    if (at->is_array() && !token.empty() && token.size() <= 6 &&
        token.find_first_not_of("0123456789") == std::string::npos) {
      const size_t index = std::stoul(token);
      next = index < at->as_array().size() ? &at->as_array()[index] : nullptr;
    }
    if (next == nullptr) refuse(path, "$ref", fmt::format("\"{}\" leads nowhere", reference));
    at = next;
    place += escaped_pointer(token);
  }
  note_path(*at, place);
  return at;
}

void SchemaReader::read(const Json* schema, FlatSchema& flat) {
  const std::string& path = path_of(schema);
  if (std::ranges::find(active_, schema) != active_.end())
    refuse(path, "$ref", "the schema consists of itself, so no value can be told from it");
  if (std::ranges::find(flat.read, schema) != flat.read.end()) return;
  if (++reads_ > kReadsMax || flat.read.size() >= kListMax)
    refuse(root_path_, "allOf", "the schema is too large when its parts are put together");
  flat.read.push_back(schema);
  if (schema->is_bool()) {
    flat.is_impossible = flat.is_impossible || is_false(*schema);
    return;
  }
  if (!schema->is_object()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: a schema is an object or a boolean, not {}", path, schema->kind_name()));
  }
  active_.push_back(schema);
  for (const JsonMember& member : schema->as_object())
    read_keyword(*schema, member, path, flat);
  active_.pop_back();
}

/// The keywords, each a function of its value.
struct SchemaKeywords {
  struct Context {
    SchemaReader& reader;
    const Json& schema;
    const Json& value;
    const std::string& path;
    std::string_view keyword;
    FlatSchema& flat;

    [[noreturn]] void refuse(std::string_view what) const { SchemaReader::refuse(path, keyword, what); }
    [[nodiscard]] std::string inner_path(std::string_view key = {}) const {
      return path + escaped_pointer(keyword) + (key.data() == nullptr ? "" : escaped_pointer(key));
    }
    /// Notes where a sub-schema is.
    const Json* sub_schema(const Json& inner, std::string_view key = {}) const {
      reader.note_path(inner, inner_path(key));
      return &inner;
    }
    [[nodiscard]] const Json::Array& as_list() const {
      if (!value.is_array()) refuse(fmt::format("must be a list, not {}", value.kind_name()));
      if (value.as_array().size() > kListMax) refuse(fmt::format("has more than {} entries", kListMax));
      return value.as_array();
    }
    [[nodiscard]] uint32_t as_count() const {
      const bool is_number = value.kind() == Json::Kind::kInteger || value.kind() == Json::Kind::kReal;
      const std::optional<Decimal> number = is_number ? parse_decimal(value.number_text()) : std::nullopt;
      if (!number || *number < Decimal{} || number->fraction != 0) refuse("must be a whole number, at least 0");
      return static_cast<uint32_t>(std::min<int64_t>(number->whole, kUnlimitedCount - 1));
    }
    [[nodiscard]] Decimal as_bound() const {
      if (value.kind() != Json::Kind::kInteger && value.kind() != Json::Kind::kReal)
        refuse(fmt::format("must be a number, not {}", value.kind_name()));
      const std::optional<Decimal> number = parse_decimal(value.number_text());
      if (!number) refuse(fmt::format("has more than {} decimal places", kFractionDigitsMax));
      return *number;
    }
    [[nodiscard]] const std::string& as_text() const {
      if (!value.is_string()) refuse(fmt::format("must be a string, not {}", value.kind_name()));
      return value.as_string();
    }
  };
  using Function = void (*)(const Context&);

  static void type(const Context& in) {
    uint8_t types = 0;
    const auto add = [&](const Json& name) {
      const std::optional<uint8_t> bits = name.is_string() ? type_of_name(name.as_string()) : std::nullopt;
      if (!bits) in.refuse("must be null, boolean, integer, number, string, array or object, or a list of these");
      types |= *bits;
    };
    if (in.value.is_array()) {
      for (const Json& name : in.value.as_array())
        add(name);
    } else {
      add(in.value);
    }
    const Json* nullable = in.schema.find("nullable");
    if (nullable != nullptr && nullable->is_bool() && nullable->as_bool()) types |= kNullType;
    in.flat.types &= types;
    in.flat.has_type = true;
  }

  static void literals(const Context& in, std::vector<Json> values) {
    for (const Json& value : values) {
      const bool is_number = value.kind() == Json::Kind::kReal || value.kind() == Json::Kind::kInteger;
      if (is_number && !std::isfinite(value.as_double())) in.refuse("a number is too large");
    }
    if (in.flat.literals) {
      std::erase_if(values, [&](const Json& value) {
        return std::ranges::find(*in.flat.literals, value) == in.flat.literals->end();
      });
    }
    in.flat.literals = std::move(values);
  }
  static void enumeration(const Context& in) { literals(in, in.as_list()); }
  static void constant(const Context& in) { literals(in, {in.value}); }

  static void minimum(const Context& in) {
    const Json* exclusive = in.schema.find("exclusiveMinimum");  // draft 4: a boolean
    raise_least(in, in.as_bound(), exclusive != nullptr && exclusive->is_bool() && exclusive->as_bool() ? 1 : 0);
  }
  static void maximum(const Context& in) {
    const Json* exclusive = in.schema.find("exclusiveMaximum");
    lower_most(in, in.as_bound(), exclusive != nullptr && exclusive->is_bool() && exclusive->as_bool() ? 1 : 0);
  }
  static void exclusive_minimum(const Context& in) {
    if (!in.value.is_bool()) raise_least(in, in.as_bound(), 1);
  }
  static void exclusive_maximum(const Context& in) {
    if (!in.value.is_bool()) lower_most(in, in.as_bound(), 1);
  }
  static void raise_least(const Context& in, Decimal bound, int exclusive) {
    NumberSpec& number = in.flat.number;
    if (!number.least || bound > *number.least || (bound == *number.least && exclusive == 1)) {
      number.least = bound;
      number.excludes_least = exclusive == 1;
    }
    in.flat.spoken_types |= kIntegerType | kFractionType;
  }
  static void lower_most(const Context& in, Decimal bound, int exclusive) {
    NumberSpec& number = in.flat.number;
    if (!number.most || bound < *number.most || (bound == *number.most && exclusive == 1)) {
      number.most = bound;
      number.excludes_most = exclusive == 1;
    }
    in.flat.spoken_types |= kIntegerType | kFractionType;
  }
  static void multiple_of(const Context& in) {
    constexpr int64_t kMultipleMax = 100;
    const Decimal step = in.as_bound();
    NumberSpec& number = in.flat.number;
    in.flat.spoken_types |= kIntegerType | kFractionType;
    for (int digits = 1; digits <= kFractionDigitsMax; ++digits) {
      if (step != Decimal{0, power_of_ten(kFractionDigitsMax - digits)}) continue;
      number.fraction_digits = std::min(number.fraction_digits, static_cast<uint32_t>(digits));
      return;
    }
    if (step.fraction != 0 || step.whole < 1 || step.whole > kMultipleMax)
      in.refuse(fmt::format("supported are whole numbers from 1 to {}, 0.1, 0.01 and so on", kMultipleMax));
    const auto multiple = static_cast<uint32_t>(step.whole);
    if (number.multiple_of != 1 && multiple != 1 && number.multiple_of != multiple)
      in.refuse("two different values for one number");
    number.multiple_of = std::max(number.multiple_of, multiple);
    number.is_integer = true;
  }

  static void min_length(const Context& in) {
    in.flat.chars_min = std::max(in.flat.chars_min, in.as_count());
    in.flat.spoken_types |= kStringType;
    if (in.flat.chars_min > JsonSchema::kStringCharsMax)
      in.refuse(fmt::format("is above the limit of {}", JsonSchema::kStringCharsMax));
  }
  static void max_length(const Context& in) {
    // Shorter strings than asked for are valid too.
    in.flat.chars_max = std::min({in.flat.chars_max, in.as_count(), JsonSchema::kStringCharsMax});
    in.flat.spoken_types |= kStringType;
  }
  static CharDfa compiled(const Context& in, std::string_view pattern) {
    try {
      return CharDfa::from_pattern(pattern);
    } catch (const Error& error) {
      in.refuse(error.what());
    }
  }
  static void conjoin(const Context& in, std::shared_ptr<const CharDfa>& known, const CharDfa& pattern) {
    try {
      known = std::make_shared<const CharDfa>(known ? known->intersect(pattern) : pattern);
    } catch (const Error& error) {
      in.refuse(error.what());
    }
  }
  static void pattern(const Context& in) {
    const CharDfa automaton = compiled(in, in.as_text());
    conjoin(in, in.flat.pattern, automaton);
    conjoin(in, in.flat.asserted_pattern, automaton);
    in.flat.spoken_types |= kStringType;
  }
  static void format(const Context& in) {
    // OpenAPI's annotations of numbers and of encoded strings say nothing that a validator checks.
    constexpr std::array<std::string_view, 8> kAnnotations = {"int64", "float",  "double",   "decimal",
                                                              "byte",  "binary", "password", "regex"};
    const std::string& name = in.as_text();
    if (name == "int32") {
      raise_least(in, {-(int64_t{1} << 31), 0}, 0);
      lower_most(in, {(int64_t{1} << 31) - 1, 0}, 0);
      return;
    }
    if (std::ranges::find(kAnnotations, name) != kAnnotations.end()) return;
    const std::optional<std::string_view> known = string_format_pattern(name);
    if (!known) in.refuse(fmt::format("\"{}\" is not supported", name));
    conjoin(in, in.flat.pattern, compiled(in, *known));
    in.flat.spoken_types |= kStringType;
  }
  static void items(const Context& in) {
    FlatSchema::ArrayPart part;
    if (in.value.is_array()) {  // before draft 2020-12: the first elements
      add_prefix(in, part);
      part.items = sibling(in, "additionalItems");
    } else {
      part.items = in.sub_schema(in.value);
      if (const Json* prefix = in.schema.find("prefixItems"))
        add_prefix({in.reader, in.schema, *prefix, in.path, "prefixItems", in.flat}, part);
    }
    in.flat.arrays.push_back(std::move(part));
    in.flat.spoken_types |= kArrayType;
  }
  static void prefix_items(const Context& in) {
    if (in.schema.find("items") != nullptr) return;  // which has read both
    FlatSchema::ArrayPart part;
    add_prefix(in, part);
    in.flat.arrays.push_back(std::move(part));
    in.flat.spoken_types |= kArrayType;
  }
  static void add_prefix(const Context& in, FlatSchema::ArrayPart& part) {
    const Json::Array& list = in.as_list();
    for (size_t i = 0; i < list.size(); ++i)
      part.prefix.push_back(in.sub_schema(list[i], std::to_string(i)));
  }
  static const Json* sibling(const Context& in, std::string_view keyword) {
    const Json* value = in.schema.find(keyword);
    if (value != nullptr) in.reader.note_path(*value, in.path + escaped_pointer(keyword));
    return value;
  }
  static void min_items(const Context& in) {
    in.flat.items_min = std::max(in.flat.items_min, in.as_count());
    in.flat.spoken_types |= kArrayType;
    if (in.flat.items_min > JsonSchema::kArrayCountMax)
      in.refuse(fmt::format("is above the limit of {}", JsonSchema::kArrayCountMax));
  }
  static void max_items(const Context& in) {
    in.flat.items_max = std::min({in.flat.items_max, in.as_count(), JsonSchema::kArrayCountMax});
    in.flat.spoken_types |= kArrayType;
  }
  static void unique_items(const Context& in) {
    if (!is_false(in.value)) in.refuse("is not supported");
  }

  static void properties(const Context& in) {
    if (!in.value.is_object()) in.refuse(fmt::format("must be an object, not {}", in.value.kind_name()));
    if (in.value.as_object().size() > kListMax) in.refuse(fmt::format("has more than {} entries", kListMax));
    FlatSchema::ObjectPart part;
    for (const JsonMember& member : in.value.as_object())
      part.properties.emplace_back(member.key, in.sub_schema(member.value, member.key));
    part.additional = sibling(in, "additionalProperties");
    part.has_list = true;
    in.flat.objects.push_back(std::move(part));
    in.flat.spoken_types |= kObjectType;
  }
  static void additional_properties(const Context& in) {
    if (in.schema.find("properties") != nullptr) return;  // which has read both
    in.flat.objects.push_back({{}, in.sub_schema(in.value), false});
    in.flat.spoken_types |= kObjectType;
  }
  static void required(const Context& in) {
    for (const Json& name : in.as_list()) {
      if (!name.is_string()) in.refuse("must be a list of strings");
      const std::string& text = name.as_string();
      if (std::ranges::find(in.flat.required, text) == in.flat.required.end()) in.flat.required.push_back(text);
    }
    in.flat.spoken_types |= kObjectType;
  }
  static void min_properties(const Context& in) {
    in.flat.members_min = std::max(in.flat.members_min, in.as_count());
    in.flat.spoken_types |= kObjectType;
  }
  static void max_properties(const Context& in) {
    in.flat.members_max = std::min(in.flat.members_max, in.as_count());
    in.flat.spoken_types |= kObjectType;
  }
  static void property_names(const Context& in) {
    // What record types of schema libraries write; it says nothing, as all names are strings.
    const bool is_trivial = (in.value.is_bool() && in.value.as_bool()) ||
                            (in.value.is_object() && std::ranges::all_of(in.value.as_object(), [](const JsonMember& m) {
                               return m.key == "type" && m.value.is_string() && m.value.as_string() == "string";
                             }));
    if (!is_trivial) in.refuse("only {\"type\": \"string\"} is supported");
  }
  static void unevaluated_properties(const Context& in) {
    if (is_false(in.value)) {
      in.flat.is_closed_unless_said = true;
    } else if (!in.value.is_bool()) {
      in.refuse("only false and true are supported");
    }
  }

  static void reference(const Context& in) { in.reader.read(in.reader.resolve(in.as_text(), in.path), in.flat); }
  static void all_of(const Context& in) {
    const Json::Array& list = in.as_list();
    for (size_t i = 0; i < list.size(); ++i)
      in.reader.read(in.sub_schema(list[i], std::to_string(i)), in.flat);
  }
  static void any_of(const Context& in) {
    const Json::Array& list = in.as_list();
    if (list.empty()) in.refuse("must not be empty");
    for (size_t i = 0; i < list.size(); ++i)
      (void)in.sub_schema(list[i], std::to_string(i));
    in.flat.choices.push_back({&in.value, in.inner_path(), in.reader.active_});
  }
  static void one_of(const Context& in) {
    any_of(in);
    if (in.reader.is_one_of_noted_.emplace(&in.value, true).second)
      in.reader.one_ofs_.push_back({&in.value, in.inner_path()});
  }
  static void unsupported(const Context& in) { in.refuse("is not supported"); }
};

namespace {

struct Keyword {
  std::string_view name;
  SchemaKeywords::Function read;
};

using K = SchemaKeywords;
/// Keywords that are not here say nothing that a validator checks (title, description, default, examples and the like,
/// and whatever JSON Schema does not know).
constexpr std::array kKeywords = {
    Keyword{"type", K::type},
    Keyword{"enum", K::enumeration},
    Keyword{"const", K::constant},
    Keyword{"minimum", K::minimum},
    Keyword{"maximum", K::maximum},
    Keyword{"exclusiveMinimum", K::exclusive_minimum},
    Keyword{"exclusiveMaximum", K::exclusive_maximum},
    Keyword{"multipleOf", K::multiple_of},
    Keyword{"minLength", K::min_length},
    Keyword{"maxLength", K::max_length},
    Keyword{"pattern", K::pattern},
    Keyword{"format", K::format},
    Keyword{"items", K::items},
    Keyword{"prefixItems", K::prefix_items},
    Keyword{"minItems", K::min_items},
    Keyword{"maxItems", K::max_items},
    Keyword{"uniqueItems", K::unique_items},
    Keyword{"properties", K::properties},
    Keyword{"additionalProperties", K::additional_properties},
    Keyword{"required", K::required},
    Keyword{"minProperties", K::min_properties},
    Keyword{"maxProperties", K::max_properties},
    Keyword{"propertyNames", K::property_names},
    Keyword{"unevaluatedProperties", K::unevaluated_properties},
    Keyword{"$ref", K::reference},
    Keyword{"allOf", K::all_of},
    Keyword{"anyOf", K::any_of},
    Keyword{"oneOf", K::one_of},
    Keyword{"not", K::unsupported},
    Keyword{"if", K::unsupported},
    Keyword{"then", K::unsupported},
    Keyword{"else", K::unsupported},
    Keyword{"dependencies", K::unsupported},
    Keyword{"dependentRequired", K::unsupported},
    Keyword{"dependentSchemas", K::unsupported},
    Keyword{"patternProperties", K::unsupported},
    Keyword{"contains", K::unsupported},
    Keyword{"minContains", K::unsupported},
    Keyword{"maxContains", K::unsupported},
    Keyword{"unevaluatedItems", K::unsupported},
    Keyword{"$dynamicRef", K::unsupported},
    Keyword{"$recursiveRef", K::unsupported},
    Keyword{"extends", K::unsupported},
    Keyword{"disallow", K::unsupported},
    Keyword{"divisibleBy", K::unsupported},
};

}  // namespace

void SchemaReader::read_keyword(const Json& schema, const JsonMember& member, const std::string& path,
                                FlatSchema& flat) {
  const auto* const keyword = std::ranges::find(kKeywords, std::string_view(member.key), &Keyword::name);
  if (keyword == kKeywords.end()) return;
  keyword->read({*this, schema, member.value, path, keyword->name, flat});
}

std::vector<FlatSchema> SchemaReader::expand(const std::vector<const Json*>& schemas) {
  std::vector<FlatSchema> done;
  std::vector<FlatSchema> pending(1);
  for (const Json* schema : schemas)
    read(schema, pending.front());
  size_t steps = 0;
  while (!pending.empty()) {
    FlatSchema flat = std::move(pending.back());
    pending.pop_back();
    if (flat.choices.empty()) {
      done.push_back(std::move(flat));
      continue;
    }
    const FlatSchema::Choice choice = std::move(flat.choices.front());
    flat.choices.erase(flat.choices.begin());
    const Json::Array& alternatives = choice.schemas->as_array();
    steps += alternatives.size();
    if (steps > JsonSchema::kAlternativesMax) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: more than {} alternatives when they are multiplied out",
                                                           choice.path, JsonSchema::kAlternativesMax));
    }
    active_ = choice.owners;
    // The first alternative is to be the next one taken.
    for (size_t i = alternatives.size(); i-- > 0;) {
      FlatSchema next = flat;
      read(&alternatives[i], next);
      pending.push_back(std::move(next));
    }
    active_.clear();
  }
  return done;
}

}  // namespace tidepool
