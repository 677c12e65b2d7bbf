#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "server/http.h"
#include "server/id_source.h"

// The parts of the HTTP server, for its own files: the server accepts (http_server.cpp), a connection reads requests
// and writes bytes (http_connection.cpp, the only file that knows Beast), an exchange is one request and its answer
// (http_exchange.cpp). One thread runs one event loop, and a connection stays on its loop, so nothing about a
// connection needs a lock: what comes from other threads is posted to its loop.

namespace boost::asio {
class io_context;
class thread_pool;
}  // namespace boost::asio

namespace tidepool {

/// What all connections share.
class HttpShared {
 public:
  HttpShared(HttpServerOptions given, HttpServer::Handler handle, HttpServer::Observer observe,
             HttpServer::HeadCheck check);
  HttpShared(const HttpShared&) = delete;
  HttpShared& operator=(const HttpShared&) = delete;
  ~HttpShared();

  const HttpServerOptions options;
  const HttpServer::Handler handler;
  const HttpServer::Observer observer;
  const HttpServer::HeadCheck head_check;
  std::unique_ptr<boost::asio::thread_pool> background;  ///< null once the server has stopped
  IdSource ids;
  // Counters that only need to be right on their own: relaxed order everywhere.
  std::atomic<size_t> open_exchanges{0};
  std::atomic<size_t> open_connections{0};
  std::atomic<size_t> body_bytes{0};
  std::atomic<bool> is_draining{false};
  std::atomic<bool> is_hurried{false};

  /// Runs `call` on a thread of the background, or at once when there is none any more.
  void run_in_background(std::function<void()> call) const;

  /// Counts bytes of a body; false when there are too many of all connections.
  bool reserve_body(size_t bytes) {
    if (body_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes <= options.bodies_bytes_max) return true;
    body_bytes.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  void release_body(size_t bytes) { body_bytes.fetch_sub(bytes, std::memory_order_relaxed); }
};

class HttpConnection;

/// An event loop, run by one thread, and the connections on it.
class HttpLoop {
 public:
  HttpLoop();
  HttpLoop(const HttpLoop&) = delete;
  HttpLoop& operator=(const HttpLoop&) = delete;
  virtual ~HttpLoop();

  [[nodiscard]] boost::asio::io_context& context() { return *context_; }
  /// Runs `call` on the loop's thread, in the order of the calls. Any thread.
  void post(std::function<void()> call);
  /// Only for its thread.
  [[nodiscard]] std::unordered_set<std::shared_ptr<HttpConnection>>& connections() { return connections_; }

 private:
  std::unique_ptr<boost::asio::io_context> context_;
  std::unordered_set<std::shared_ptr<HttpConnection>> connections_;  ///< they die before the context
};

/// A client's connection. All calls on its loop's thread.
class HttpConnection {
 public:
  HttpConnection() = default;
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;
  virtual ~HttpConnection() = default;

  // For the server.
  virtual void start() = 0;
  /// Closes; the exchange under way hears that its client is gone.
  virtual void cut() = 0;
  /// Closes if it waits for a further request. One that has had none yet may be about to send it.
  virtual void cut_if_idle() = 0;
  /// Sends keep-alives, and cuts off whoever takes too long.
  virtual void look_at_clock(std::chrono::steady_clock::time_point now) = 0;

  // For the exchange.
  [[nodiscard]] virtual bool is_http_1_0() const = 0;
  [[nodiscard]] virtual bool closes() const = 0;
  virtual void close_after_answer() = 0;
  virtual void send(std::string_view bytes) = 0;
  [[nodiscard]] virtual size_t backlog_bytes() const = 0;
};

/// A connection on `loop` that owns `socket`, a descriptor of a connected TCP socket.
[[nodiscard]] std::shared_ptr<HttpConnection> make_http_connection(int socket, std::shared_ptr<HttpLoop> loop,
                                                                   std::shared_ptr<HttpShared> shared);

/// The exchange of a connection.
class ConnectionExchange final : public HttpExchange, public std::enable_shared_from_this<ConnectionExchange> {
 public:
  /// `reserved` bytes are counted for the request's body.
  ConnectionExchange(std::shared_ptr<HttpConnection> connection, std::shared_ptr<HttpLoop> loop,
                     std::shared_ptr<HttpShared> shared, HttpRequest request, size_t reserved);
  ConnectionExchange(const ConnectionExchange&) = delete;
  ConnectionExchange& operator=(const ConnectionExchange&) = delete;
  ~ConnectionExchange() override { shared_->release_body(reserved_.exchange(0)); }

  [[nodiscard]] const HttpRequest& request() const override { return request_; }
  void release_body() override {
    request_.body.clear();
    request_.body.shrink_to_fit();
    shared_->release_body(reserved_.exchange(0));
  }
  void respond(HttpAnswer answer) override;
  void open_stream(HttpStream stream) override;
  [[nodiscard]] bool has_begun() const override { return has_begun_; }
  void write(std::string_view piece) override;
  void finish() override;
  void note(std::string text) override { outcome_.note = std::move(text); }
  void on_gone(std::function<void()> call) override;
  void post(std::function<void()> call) override;
  void background(std::function<void()> call) override;

  // For the connection.
  /// Sends the keep-alive of a stream.
  void keep_alive();
  [[nodiscard]] bool is_stream() const { return stream_.has_value(); }
  [[nodiscard]] bool is_answered() const { return is_answered_; }
  /// The exchange ends: complete, or cut off.
  void end(bool is_complete);

 private:
  void respond_here(const HttpAnswer& answer);
  void begin_stream();
  void append_chunk(std::string_view piece);

  std::shared_ptr<HttpConnection> connection_;  ///< empty after the end
  std::shared_ptr<HttpLoop> loop_;
  std::shared_ptr<HttpShared> shared_;
  HttpRequest request_;
  std::atomic<size_t> reserved_;  ///< bytes of the body; released once, from whichever thread comes first
  std::optional<HttpStream> stream_;
  std::function<void()> on_gone_;
  bool has_begun_ = false;
  bool is_answered_ = false;
  bool is_gone_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  HttpOutcome outcome_;
};

}  // namespace tidepool
