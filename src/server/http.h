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

namespace tidepool {

struct HttpHeader {
  std::string name;
  std::string value;
};

/// One request, complete.
struct HttpRequest {
  std::string method;
  std::string path;   ///< of the target, without the query; as it was sent
  std::string query;  ///< behind the '?', without it
  std::vector<HttpHeader> headers;
  std::string body;
  std::string peer;  ///< "127.0.0.1:40312"
  std::string id;    ///< the client's x-request-id, or one of ours; every answer carries it

  /// The first header of that name, whatever its case; null pointer when there is none.
  [[nodiscard]] const std::string* find_header(std::string_view name) const;
};

/// A whole answer.
struct HttpAnswer {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<HttpHeader> headers;
};

/// The beginning of an answer that is sent piece by piece.
struct HttpStream {
  std::string content_type = "text/event-stream";
  std::vector<HttpHeader> headers;
  /// Sent when nothing else was for HttpServerOptions::keep_alive_interval.
  std::string keep_alive = ": keep-alive\n\n";
};

/// One request and its answer. Whoever answers keeps it; after the answer's end, or when the client is gone, the calls
/// below have no effect. Lives on one thread, the connection's: only post(), background() and respond() may be called
/// from elsewhere.
class HttpExchange {
 public:
  HttpExchange() = default;
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;
  virtual ~HttpExchange() = default;

  [[nodiscard]] virtual const HttpRequest& request() const = 0;
  /// Frees the body, which counts towards a limit over all connections. Only for the one thread that reads it, when it
  /// has read it; nobody else touches the body before the exchange itself dies.
  virtual void release_body() = 0;

  /// Answers, as long as not a byte was sent. Any thread.
  virtual void respond(HttpAnswer answer) = 0;

  /// Begins an answer in pieces. Its head goes out with the first piece or the first keep-alive, so that respond() can
  /// still refuse before.
  virtual void open_stream(HttpStream stream) = 0;
  /// Whether a byte of the answer was sent.
  [[nodiscard]] virtual bool has_begun() const = 0;
  /// Sends the next piece. A client that does not take its pieces is cut off.
  virtual void write(std::string_view piece) = 0;
  /// The stream is complete.
  virtual void finish() = 0;

  /// Tells the observer something of the answer (HttpOutcome::note); the last one counts.
  virtual void note(std::string text) = 0;

  /// Called once on the connection's thread if the client leaves, or is cut off, before the answer is complete; at once
  /// when it has left already.
  virtual void on_gone(std::function<void()> call) = 0;

  /// Runs `call` on the connection's thread, in the order of the calls. Any thread.
  virtual void post(std::function<void()> call) = 0;
  /// Runs `call` on a thread of its own kind, for what takes long. Any thread. What it throws becomes a 500.
  virtual void background(std::function<void()> call) = 0;
};

/// How an exchange ended.
struct HttpOutcome {
  int status = 0;           ///< 0: the client left before there was an answer
  uint64_t bytes_sent = 0;  ///< of the body
  std::chrono::steady_clock::duration duration{};
  bool is_complete = false;
  std::string note;  ///< what HttpExchange::note() was told
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  ///< 0: any free one
  size_t io_threads = 2;
  size_t background_threads = 4;
  size_t connections_max = 8192;
  size_t header_bytes_max = size_t{64} << 10;
  size_t body_bytes_max = size_t{48} << 20;
  /// Of all requests whose body is not released yet; bodies up to small_body_bytes do not count and are always taken.
  size_t bodies_bytes_max = size_t{1} << 30;
  size_t small_body_bytes = size_t{64} << 10;
  /// What a stream's reader may be behind before it is cut off.
  size_t stream_backlog_bytes_max = size_t{4} << 20;
  std::chrono::milliseconds head_timeout{30'000};   ///< from the first byte of a request to the end of its head
  std::chrono::milliseconds body_timeout{60'000};   ///< without a byte of a body; and what body_rate_min has on top
  size_t body_rate_min = size_t{128} << 10;         ///< bytes per second that a body must make over its whole time
  std::chrono::milliseconds idle_timeout{120'000};  ///< between requests of a connection
  std::chrono::milliseconds write_timeout{60'000};  ///< without the client taking a byte
  std::chrono::milliseconds keep_alive_interval{15'000};
  std::chrono::milliseconds tick{500};  ///< how often the times above are looked at
};

/// An HTTP/1.1 server: a few threads that never wait for a client, and some for work that takes long.
class HttpServer {
 public:
  /// Called on a connection's thread for every complete request; must not take long. What it throws becomes a 500.
  using Handler = std::function<void(const std::shared_ptr<HttpExchange>&)>;
  /// Looks at a request whose head is complete, before its body is read: what it answers is the answer, and the body is
  /// not taken. On a connection's thread.
  using HeadCheck = std::function<std::optional<HttpAnswer>(const HttpRequest&)>;
  /// Hears of every request's end, on a connection's thread. Must not look at the body, which another may be reading.
  using Observer = std::function<void(const HttpRequest&, const HttpOutcome&)>;

  /// Listens at once. Throws Error(kIo) naming host and port, kInvalidArgument for a host that is no address.
  HttpServer(HttpServerOptions options, Handler handler, Observer observer = {}, HeadCheck check = {});
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  /// stop() without grace.
  ~HttpServer();  // NOLINT(bugprone-exception-escape): a server that cannot be stopped ends the program

  [[nodiscard]] uint16_t port() const;
  /// "http://127.0.0.1:8000"
  [[nodiscard]] std::string url() const;
  /// Requests that are being answered.
  [[nodiscard]] size_t open_exchanges() const;
  [[nodiscard]] size_t open_connections() const;
  /// Processor time of the connections' threads so far.
  [[nodiscard]] double io_cpu_seconds() const;

  /// Connections close with their answer from now on.
  void drain();
  /// Ends the grace of a stop() under way. Any thread.
  void hurry();
  /// Lets answers under way end for at most `grace`; connections close with their answers meanwhile. Then takes no more
  /// connections, cuts off what is left and ends all threads.
  void stop(std::chrono::milliseconds grace);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// "Not Found" for 404; empty for a status that is not used here.
[[nodiscard]] std::string_view http_reason(int status);
/// Whether two header names are the same: ASCII letters without their case.
[[nodiscard]] bool is_same_header(std::string_view a, std::string_view b);

}  // namespace tidepool
