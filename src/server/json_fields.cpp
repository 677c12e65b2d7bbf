#include "server/json_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/error.h"

namespace tidepool {
namespace {

constexpr double kExactIntegerMax = 9007199254740992;  // 2^53

bool is_number(const Json& value) {
  return value.kind() == Json::Kind::kInteger || value.kind() == Json::Kind::kReal;
}

std::optional<int64_t> whole_number(const Json& value) {
  if (const std::optional<int64_t> integer = value.kind() == Json::Kind::kInteger ? value.try_int64() : std::nullopt) {
    return integer;
  }
  if (value.kind() != Json::Kind::kReal) return std::nullopt;
  const double real = value.as_double();
  if (std::abs(real) > kExactIntegerMax || real != std::floor(real)) return std::nullopt;
  return static_cast<int64_t>(real);
}

}  // namespace

void refuse_field(std::string_view path, std::string_view what) {
  throw Error(ErrorCode::kInvalidArgument, path.empty() ? std::string(what) : fmt::format("{}: {}", path, what));
}

std::string element_path(std::string_view list_path, size_t index) {
  return fmt::format("{}[{}]", list_path, index);
}

JsonFields::JsonFields(const Json& object, std::string path) : object_(&object), path_(std::move(path)) {
  if (!object.is_object()) refuse_field(path_, fmt::format("must be a JSON object, not {}", object.kind_name()));
}

std::string JsonFields::path(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

void JsonFields::fail(std::string_view key, std::string_view what) const {
  refuse_field(path(key), what);
}

const Json* JsonFields::find(std::string_view key) const {
  const Json* value = object_->find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const Json* JsonFields::typed(std::string_view key, Json::Kind kind, std::string_view wanted) const {
  const Json* value = find(key);
  if (value != nullptr && value->kind() != kind)
    fail(key, fmt::format("must be {}, not {}", wanted, value->kind_name()));
  return value;
}

std::optional<bool> JsonFields::flag(std::string_view key) const {
  const Json* value = typed(key, Json::Kind::kBool, "a boolean");
  return value == nullptr ? std::nullopt : std::optional<bool>(value->as_bool());
}

std::optional<int64_t> JsonFields::integer(std::string_view key, int64_t min, int64_t max) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = whole_number(*value);
  if (!number) {
    const bool is_large = value->kind() == Json::Kind::kInteger;
    fail(key, is_large ? "is out of range" : fmt::format("must be an integer, not {}", value->kind_name()));
  }
  if (*number < min || *number > max) {
    if (max == INT64_MAX) fail(key, fmt::format("{} must be at least {}", *number, min));
    fail(key, fmt::format("{} is not in {} to {}", *number, min, max));
  }
  return number;
}

std::optional<double> JsonFields::number(std::string_view key, double min, double max) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!is_number(*value)) fail(key, fmt::format("must be a number, not {}", value->kind_name()));
  const double number = value->as_double();
  if (!(number >= min && number <= max)) fail(key, fmt::format("{} is not in {} to {}", number, min, max));
  return number;
}

const std::string* JsonFields::string(std::string_view key) const {
  const Json* value = typed(key, Json::Kind::kString, "a string");
  return value == nullptr ? nullptr : &value->as_string();
}

std::string JsonFields::string_or(std::string_view key, std::string_view fallback) const {
  const std::string* value = string(key);
  return value == nullptr ? std::string(fallback) : *value;
}

const std::string& JsonFields::required_string(std::string_view key) const {
  const std::string* value = string(key);
  if (value == nullptr) fail(key, "is missing");
  return *value;
}

const Json::Array* JsonFields::list(std::string_view key) const {
  const Json* value = typed(key, Json::Kind::kArray, "a list");
  return value == nullptr ? nullptr : &value->as_array();
}

std::optional<JsonFields> JsonFields::object(std::string_view key) const {
  const Json* value = typed(key, Json::Kind::kObject, "an object");
  return value == nullptr ? std::nullopt : std::optional<JsonFields>(JsonFields(*value, path(key)));
}

std::vector<int32_t> JsonFields::ids(std::string_view key) const {
  std::vector<int32_t> ids;
  const Json::Array* values = list(key);
  if (values == nullptr) return ids;
  ids.reserve(values->size());
  for (size_t i = 0; i < values->size(); ++i) {
    const std::optional<int64_t> id = whole_number((*values)[i]);
    if (!id || *id < 0 || *id > INT32_MAX) refuse_field(element_path(path(key), i), "is no token id");
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace tidepool
