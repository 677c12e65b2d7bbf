#include "server/http.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tidepool {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

constexpr std::array<std::pair<int, std::string_view>, 19> kReasons = {{
    {200, "OK"},
    {204, "No Content"},
    {304, "Not Modified"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {411, "Length Required"},
    {413, "Content Too Large"},
    {415, "Unsupported Media Type"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {529, "Overloaded"},
}};

}  // namespace

bool is_same_header(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return lower(x) == lower(y); });
}

const std::string* HttpRequest::find_header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (is_same_header(header.name, name)) return &header.value;
  }
  return nullptr;
}

std::string_view http_reason(int status) {
  for (const auto& [code, reason] : kReasons) {
    if (code == status) return reason;
  }
  return "";
}

}  // namespace tidepool
