#include "server/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "server/api_error.h"

namespace tidepool {
namespace {

/// Whether they are the same, in a time that tells nothing of where they differ.
bool is_same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned>(static_cast<unsigned char>(b[i % b.size()]));
  return difference == 0;
}

/// "example.com:8000" of "http://example.com:8000"; empty without a scheme.
std::string_view authority_of(std::string_view origin) {
  const size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? std::string_view() : origin.substr(scheme + 3);
}

/// The name without its port, which a forwarded one need not be ours, and without what may stand around a name:
/// "::1" of "[::1]:8000", "localhost" of "localhost.:9000".
std::string_view host_name(std::string_view authority) {
  if (authority.starts_with('[')) return authority.substr(1, authority.find(']') - 1);
  std::string_view name = authority.substr(0, authority.find(':'));
  if (name.ends_with('.')) name.remove_suffix(1);
  return name;
}

/// What the Host header says when a page asks where it came from.
bool is_same_origin(std::string_view origin, const HttpRequest& request) {
  const std::string* host = request.find_header("host");
  const std::string_view authority = authority_of(origin);
  return host != nullptr && !authority.empty() && is_same_header(authority, *host);
}

/// Pages without an origin of their own, which any page can make, say "null".
bool is_web_origin(std::string_view origin) {
  return origin.starts_with("http://") || origin.starts_with("https://") || origin == "null";
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

AccessRules::AccessRules(std::string host, std::string api_key, std::vector<std::string> allowed_origins)
    : host_(std::move(host)), api_key_(std::move(api_key)), allowed_origins_(std::move(allowed_origins)) {}

bool AccessRules::is_allowed_origin(std::string_view origin) const {
  return std::ranges::any_of(allowed_origins_,
                             [&](const std::string& allowed) { return allowed == "*" || allowed == origin; });
}

void AccessRules::check_key(const HttpRequest& request) const {
  if (api_key_.empty()) return;
  const std::string* key = request.find_header("x-api-key");
  if (key != nullptr && is_same_secret(*key, api_key_)) return;
  const std::string* authorization = request.find_header("authorization");
  constexpr std::string_view kScheme = "Bearer ";
  if (authorization != nullptr && authorization->size() >= kScheme.size() &&
      is_same_header(std::string_view(*authorization).substr(0, kScheme.size()), kScheme) &&
      is_same_secret(std::string_view(*authorization).substr(kScheme.size()), api_key_)) {
    return;
  }
  throw ApiRefusal(make_error(
      401, "the API key is missing or wrong: send \"Authorization: Bearer KEY\" or \"x-api-key\"", "invalid_api_key"));
}

void AccessRules::check_origin(const HttpRequest& request) const {
  const std::string* origin = request.find_header("origin");
  if (origin == nullptr || !is_web_origin(*origin) || is_same_origin(*origin, request)) return;
  if (is_allowed_origin(*origin)) return;
  throw ApiRefusal(make_error(403, "pages of this origin may not ask; --allowed-origins lets them"));
}

void AccessRules::check_host(const HttpRequest& request) const {
  if (!is_loopback(host_) || !api_key_.empty()) return;
  const std::string* header = request.find_header("host");
  if (header == nullptr) return;  // no browser leaves it out
  const std::string_view name = host_name(*header);
  const std::array<std::string_view, 4> own = {"localhost", "127.0.0.1", "::1", host_};
  if (std::ranges::any_of(own, [&](std::string_view known) { return is_same_header(name, known); })) return;
  const bool is_allowed = std::ranges::any_of(allowed_origins_, [&](const std::string& allowed) {
    return allowed == "*" || is_same_header(name, host_name(authority_of(allowed)));
  });
  if (is_allowed) return;
  throw ApiRefusal(make_error(
      403,
      fmt::format("this server answers on this machine only, as localhost, not as \"{}\": a web page could have made "
                  "that name point here; an origin of that name in --allowed-origins allows it, or set --api-key",
                  printable(name, 80))));
}

}  // namespace tidepool
