#include "server/json_writer.h"

#include <cmath>

namespace tidepool {

void JsonWriter::separate() {
  if (needs_comma_) out_ += ',';
  needs_comma_ = true;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  out_ += bracket;
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  out_ += '"';
  append_json_escaped(out_, name);
  out_ += "\":";
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view value) {
  separate();
  out_ += '"';
  append_json_escaped(out_, value);
  out_ += '"';
  return *this;
}

JsonWriter& JsonWriter::integer(int64_t value) {
  return raw(std::to_string(value));
}

JsonWriter& JsonWriter::number(double value) {
  return std::isfinite(value) ? raw(shortest_real(value)) : null();
}

JsonWriter& JsonWriter::boolean(bool value) {
  return raw(value ? "true" : "false");
}

JsonWriter& JsonWriter::null() {
  return raw("null");
}

JsonWriter& JsonWriter::json(const Json& value) {
  separate();
  append_json(out_, value);
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view text) {
  separate();
  out_ += text;
  return *this;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  append_json_escaped(out, text);
  out += '"';
  return out;
}

}  // namespace tidepool
