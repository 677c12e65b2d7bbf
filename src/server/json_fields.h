#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/json.h"

namespace tidepool {

/// Refuses a field of a request: Error(kInvalidArgument), "path: what". Error answers take `param` from there.
[[noreturn]] void refuse_field(std::string_view path, std::string_view what);

/// Reads the members of an object that a client sent. A member that is null counts as absent; one of the wrong type or
/// out of range is refused by its path.
class JsonFields {
 public:
  /// `path` is the object's own, empty for a body. Refuses what is no object. Borrows `object`.
  explicit JsonFields(const Json& object, std::string path = "");

  [[nodiscard]] const Json* find(std::string_view key) const;
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  [[nodiscard]] std::optional<bool> flag(std::string_view key) const;
  /// In [min, max]. A number like 16.0 is an integer too.
  [[nodiscard]] std::optional<int64_t> integer(std::string_view key, int64_t min = INT64_MIN,
                                               int64_t max = INT64_MAX) const;
  /// In [min, max].
  [[nodiscard]] std::optional<double> number(std::string_view key, double min, double max) const;
  /// Null pointer when absent.
  [[nodiscard]] const std::string* string(std::string_view key) const;
  [[nodiscard]] std::string string_or(std::string_view key, std::string_view fallback) const;
  /// Refuses an absent one too.
  [[nodiscard]] const std::string& required_string(std::string_view key) const;
  [[nodiscard]] const Json::Array* list(std::string_view key) const;
  [[nodiscard]] std::optional<JsonFields> object(std::string_view key) const;
  /// A list of token ids.
  [[nodiscard]] std::vector<int32_t> ids(std::string_view key) const;

  [[nodiscard]] std::string path(std::string_view key) const;
  [[nodiscard]] const std::string& own_path() const { return path_; }
  [[nodiscard]] const Json& json() const { return *object_; }
  [[noreturn]] void fail(std::string_view key, std::string_view what) const;

 private:
  [[nodiscard]] const Json* typed(std::string_view key, Json::Kind kind, std::string_view wanted) const;

  const Json* object_;
  std::string path_;
};

/// "key[3]"
[[nodiscard]] std::string element_path(std::string_view list_path, size_t index);

}  // namespace tidepool
