#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace tidepool {

/// Who may ask. Each check looks at a request's head and throws ApiRefusal.
class AccessRules {
 public:
  /// `host` is the address that is listened on. An empty key lets everybody ask; origins are "https://example.com", or
  /// "*" for every one.
  AccessRules(std::string host, std::string api_key, std::vector<std::string> allowed_origins);

  /// 401 without the key.
  void check_key(const HttpRequest& request) const;
  /// 403 for web pages from elsewhere. Such a page can send requests to a server on the user's machine, though it
  /// cannot read the answers: enough to keep the model busy.
  void check_origin(const HttpRequest& request) const;
  /// 403 for names that are not this machine's own, where nothing but being on it lets a client in: on a loopback
  /// address without a key. A web page whose name was made to point here ("DNS rebinding") is of the server's own
  /// origin for the browser, and for check_origin() too.
  void check_host(const HttpRequest& request) const;

  [[nodiscard]] bool is_allowed_origin(std::string_view origin) const;
  [[nodiscard]] bool has_allowed_origins() const { return !allowed_origins_.empty(); }

 private:
  std::string host_;
  std::string api_key_;
  std::vector<std::string> allowed_origins_;
};

}  // namespace tidepool
