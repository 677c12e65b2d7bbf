#include "session/generation_defaults.h"

#include <fmt/format.h>

#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "text/json.h"

namespace tidepool {
namespace {

/// The released file has under 200 bytes.
constexpr uint64_t kDefaultsBytesMax = uint64_t{1} << 20;

/// Reads the keys of one file.
class Reader {
 public:
  Reader(const Json& object, const std::string& origin) : object_(object), origin_(origin) {}

  [[nodiscard]] std::optional<double> number(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->kind() != Json::Kind::kInteger && value->kind() != Json::Kind::kReal) refuse(key, *value, "a number");
    return value->as_double();
  }
  [[nodiscard]] std::optional<int64_t> integer(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    const std::optional<int64_t> result = value->try_int64();
    if (!result) refuse(key, *value, "an integer");
    return result;
  }
  [[nodiscard]] std::vector<int32_t> ids(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_array()) return {id(key, *value)};
    std::vector<int32_t> result;
    result.reserve(value->as_array().size());
    for (const Json& element : value->as_array())
      result.push_back(id(key, element));
    return result;
  }

 private:
  [[nodiscard]] const Json* find(std::string_view key) const {
    const Json* value = object_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  [[nodiscard]] int32_t id(std::string_view key, const Json& value) const {
    const std::optional<int64_t> result = value.try_int64();
    if (!result || *result < 0 || *result > std::numeric_limits<int32_t>::max())
      refuse(key, value, "a token id or a list of them");
    return static_cast<int32_t>(*result);
  }
  [[noreturn]] void refuse(std::string_view key, const Json& value, std::string_view wanted) const {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{}: {} is {} (should be {})", origin_, key, write_json(value), wanted));
  }

  const Json& object_;
  const std::string& origin_;
};

}  // namespace

SamplingParams GenerationDefaults::sampling() const {
  SamplingParams params;
  params.temperature = temperature.value_or(params.temperature);
  params.top_p = top_p.value_or(params.top_p);
  params.min_p = min_p.value_or(params.min_p);
  params.repetition_penalty = repetition_penalty.value_or(params.repetition_penalty);
  params.top_k = top_k.value_or(params.top_k);
  return params;
}

GenerationDefaults load_generation_defaults(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return {};
  return parse_generation_defaults(read_file(file, kDefaultsBytesMax), file.string());
}

GenerationDefaults parse_generation_defaults(std::string_view json, const std::string& origin) {
  Json object;
  try {
    object = parse_json(json);
  } catch (const Error& error) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: {}", origin, error.what()));
  }
  if (!object.is_object())
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: holds {} (should be an object)", origin, object.kind_name()));
  const Reader reader(object, origin);
  GenerationDefaults defaults;
  defaults.temperature = reader.number("temperature");
  defaults.top_p = reader.number("top_p");
  defaults.min_p = reader.number("min_p");
  defaults.repetition_penalty = reader.number("repetition_penalty");
  defaults.top_k = reader.integer("top_k");
  defaults.stop_ids = reader.ids("eos_token_id");
  return defaults;
}

}  // namespace tidepool
