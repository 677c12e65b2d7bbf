#include "server/http_message.h"

#include <fmt/format.h>

#include <array>
#include <ctime>

namespace tidepool {
namespace {

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 40> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text.data(), size};
}
}  // namespace

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  for (const char c : value) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) out += c;
  }
  out += "\r\n";
}

std::string make_head(int status, std::string_view content_type, const std::vector<HttpHeader>& headers, bool closes) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", status, http_reason(status));
  append_header(head, "Date", date_text());
  if (!content_type.empty()) append_header(head, "Content-Type", content_type);
  for (const HttpHeader& header : headers)
    append_header(head, header.name, header.value);
  if (closes) append_header(head, "Connection", "close");
  return head;
}

std::string refusal_body(std::string_view message) {
  return fmt::format(
      R"({{"error": {{"message": "{}", "type": "invalid_request_error", "param": null, "code": null}}}})", message);
}

HttpAnswer internal_error() {
  HttpAnswer answer;
  answer.status = 500;
  answer.body = R"({"error": {"message": "internal error", "type": "server_error", "param": null, "code": null}})";
  return answer;
}
}  // namespace tidepool
