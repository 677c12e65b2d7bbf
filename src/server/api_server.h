#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"
#include "session/service.h"

namespace tidepool {

struct ApiServerOptions {
  HttpServerOptions http;
  /// The first is the one that lists name; the others are asked for too. At least one.
  std::vector<std::string> model_names;
  std::string version;  ///< of the program
  std::string api_key;  ///< empty: everybody may ask
  /// Origins of web pages that may ask, "https://example.com"; "*" is every one.
  std::vector<std::string> allowed_origins;
  /// How long a request may take.
  std::optional<std::chrono::milliseconds> request_timeout;
  /// How long the engine may make no progress before health checks fail. Any part of a forward call is progress, so
  /// this is the time of the slowest single product: generous for weights that come from a slow disk.
  std::chrono::milliseconds stuck_limit{120'000};
  /// For tests; steady time otherwise. Any thread.
  std::function<std::chrono::steady_clock::time_point()> now;
  /// Gets a line of JSON per request, without its text. May be empty; called from several threads.
  std::function<void(std::string_view)> access_log;
};

/// The APIs of docs/api.md on one service, over HTTP. Answers from the beginning: health checks and refusals until it
/// has its service.
class ApiServer {
 public:
  /// Listens at once; throws Error as HttpServer does.
  explicit ApiServer(ApiServerOptions options);
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;
  ~ApiServer();

  /// What is being loaded, for /health.
  void set_progress(std::string_view part, size_t done, size_t total);
  /// Requests are taken from now on. `service` must outlive the server's stop(). Call once.
  void set_service(Service& service);

  /// Takes no more requests, and lets those under way end for at most `grace` before they are cut off.
  void stop(std::chrono::milliseconds grace);
  /// Ends the grace of a stop() under way. Any thread.
  void hurry();

  [[nodiscard]] const HttpServer& http() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool
