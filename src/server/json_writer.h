#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/json.h"

namespace tidepool {

/// Writes JSON text piece by piece, in the shortest form: what goes out with every token is not built as a tree first.
/// Strings must be UTF-8.
class JsonWriter {
 public:
  /// Appends to `out`, which must outlive it.
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);
  JsonWriter& string(std::string_view value);
  JsonWriter& integer(int64_t value);
  /// null for what JSON has no number for.
  JsonWriter& number(double value);
  JsonWriter& boolean(bool value);
  JsonWriter& null();
  JsonWriter& json(const Json& value);
  /// A value that is JSON text already.
  JsonWriter& raw(std::string_view text);

  JsonWriter& field(std::string_view name, std::string_view value) { return key(name).string(value); }
  JsonWriter& field(std::string_view name, const char* value) { return key(name).string(value); }
  JsonWriter& field(std::string_view name, int64_t value) { return key(name).integer(value); }
  JsonWriter& field(std::string_view name, size_t value) { return key(name).integer(static_cast<int64_t>(value)); }
  JsonWriter& field(std::string_view name, int value) { return key(name).integer(value); }
  JsonWriter& field(std::string_view name, bool value) { return key(name).boolean(value); }
  JsonWriter& null_field(std::string_view name) { return key(name).null(); }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void separate();

  std::string& out_;
  bool needs_comma_ = false;
};

/// `text` as a JSON string, with its quotes.
[[nodiscard]] std::string json_string(std::string_view text);

}  // namespace tidepool
