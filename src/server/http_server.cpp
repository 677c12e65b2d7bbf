// The only file that knows Boost. One thread runs one event loop, and a connection stays on its loop, so nothing about
// a connection needs a lock: what comes from other threads is posted to its loop.
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <condition_variable>
#include <ctime>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "server/http.h"
#include "server/id_source.h"

namespace tidepool {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using ErrorValue = boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = size_t{64} << 10;
/// What a client may send ahead of the answer to its last request.
constexpr size_t kAheadBytesMax = size_t{256} << 10;
/// What is read and thrown away of a refused request, so that the refusal is not lost in a reset.
constexpr size_t kLingerBytesMax = size_t{64} << 20;
constexpr std::chrono::seconds kLingerTime{5};
constexpr size_t kRequestIdBytesMax = 128;
/// Between attempts to accept when the system has no descriptor left.
constexpr std::chrono::milliseconds kAcceptPause{100};

class Connection;

/// What all connections share.
struct Shared {
  Shared(HttpServerOptions given, HttpServer::Handler handle, HttpServer::Observer observe, HttpServer::HeadCheck check)
      : options(std::move(given)),
        handler(std::move(handle)),
        observer(std::move(observe)),
        head_check(std::move(check)) {}
  HttpServerOptions options;
  HttpServer::Handler handler;
  HttpServer::Observer observer;
  HttpServer::HeadCheck head_check;
  std::unique_ptr<asio::thread_pool> background;
  IdSource ids;
  // Counters that only need to be right on their own: relaxed order everywhere.
  std::atomic<size_t> open_exchanges{0};
  std::atomic<size_t> open_connections{0};
  std::atomic<size_t> body_bytes{0};
  std::atomic<bool> is_draining{false};
  std::atomic<bool> is_hurried{false};

  /// Counts bytes of a body; false when there are too many of all connections.
  bool reserve_body(size_t bytes) {
    if (body_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes <= options.bodies_bytes_max) return true;
    body_bytes.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  void release_body(size_t bytes) { body_bytes.fetch_sub(bytes, std::memory_order_relaxed); }
};

/// A thread with its event loop and the connections on it.
struct Loop {
  asio::io_context context{1};
  std::optional<asio::io_context::work> work{context};
  asio::steady_timer sweep_timer{context};
  std::unordered_set<std::shared_ptr<Connection>> connections;
  std::jthread thread;
};

class Exchange final : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<Connection> connection, std::shared_ptr<Loop> loop, std::shared_ptr<Shared> shared,
           HttpRequest request, size_t reserved)
      : connection_(std::move(connection)),
        loop_(std::move(loop)),
        shared_(std::move(shared)),
        request_(std::move(request)),
        reserved_(reserved) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() override { shared_->release_body(reserved_.exchange(0)); }

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

  std::shared_ptr<Connection> connection_;  ///< empty after the end
  std::shared_ptr<Loop> loop_;
  std::shared_ptr<Shared> shared_;
  HttpRequest request_;
  std::atomic<size_t> reserved_;  ///< bytes of the body; released once, from whichever thread comes first
  std::optional<HttpStream> stream_;
  std::function<void()> on_gone_;
  bool has_begun_ = false;
  bool is_answered_ = false;
  bool is_gone_ = false;
  Clock::time_point start_ = Clock::now();
  HttpOutcome outcome_;
};

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Tcp::socket socket, std::shared_ptr<Loop> loop, std::shared_ptr<Shared> shared)
      : socket_(std::move(socket)), loop_(std::move(loop)), shared_(std::move(shared)) {}

  void start();
  /// Closes; the exchange under way hears that its client is gone.
  void cut();
  /// Closes if it waits for a further request. One that has had none yet may be about to send it.
  void cut_if_idle() {
    if (has_served_ && !has_head_ && state_ == State::kReading) cut();
  }
  void look_at_clock(Clock::time_point now);

  // For the exchange.
  [[nodiscard]] bool is_http_1_0() const { return is_http_1_0_; }
  [[nodiscard]] bool closes() const { return closes_; }
  void close_after_answer() { closes_ = true; }
  void send(std::string_view bytes);
  [[nodiscard]] size_t backlog_bytes() const { return out_.size() + writing_.size() - written_; }

 private:
  enum class State { kReading, kAnswering, kLingering, kClosed };
  using Parser = http::request_parser<http::string_body>;

  void begin_request();
  void read();
  void handle_read(const ErrorValue& error, size_t bytes);
  void parse();
  [[nodiscard]] bool check_head();
  [[nodiscard]] bool count_body();
  void dispatch();
  void open_exchange();
  void refuse_head(HttpAnswer refusal);
  void refuse(int status, std::string_view message);
  void write_more();
  void handle_write(const ErrorValue& error, size_t bytes);
  void handle_flushed();
  void linger();

  Tcp::socket socket_;
  std::shared_ptr<Loop> loop_;
  std::shared_ptr<Shared> shared_;
  State state_ = State::kReading;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  HttpRequest request_;  ///< from the end of its head on, without its body
  std::shared_ptr<Exchange> exchange_;
  std::string out_;      ///< waits for `writing_` to be sent
  std::string writing_;  ///< being sent
  size_t written_ = 0;   ///< of writing_
  size_t reserved_ = 0;  ///< bytes counted of the body being read
  size_t lingered_ = 0;
  Clock::time_point deadline_;    ///< for what is being read
  Clock::time_point body_start_;  ///< the head was complete
  Clock::time_point last_write_;  ///< something was sent, or the client took something
  bool is_reading_ = false;
  bool is_writing_ = false;
  bool has_head_ = false;
  bool has_served_ = false;
  bool is_http_1_0_ = false;
  bool closes_ = false;
};

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 40> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text.data(), size};
}

/// Header values come from clients too (x-request-id): nothing in them may begin another header.
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

// --- Exchange -------------------------------------------------------------------------------------------------------

void Exchange::post(std::function<void()> call) {
  asio::post(loop_->context, std::move(call));
}

void Exchange::background(std::function<void()> call) {
  if (!shared_->background) return call();  // the last things of a server that has stopped
  asio::post(*shared_->background, [self = shared_from_this(), run = std::move(call)] {
    try {
      run();
    } catch (const std::exception& error) {
      log_error("{} {}: {}", self->request_.method, self->request_.path, error.what());
      self->respond(internal_error());
    }
  });
}

void Exchange::respond(HttpAnswer answer) {
  post([self = shared_from_this(), whole = std::move(answer)] { self->respond_here(whole); });
}

void Exchange::respond_here(const HttpAnswer& answer) {
  if (!connection_ || has_begun_ || is_answered_) return;
  std::string head = make_head(answer.status, answer.content_type, answer.headers, connection_->closes());
  append_header(head, "x-request-id", request_.id);
  if (answer.status != 204 && answer.status != 304) {
    append_header(head, "Content-Length", std::to_string(answer.body.size()));
  }
  head += "\r\n";
  has_begun_ = true;
  is_answered_ = true;
  on_gone_ = nullptr;
  outcome_.status = answer.status;
  if (request_.method != "HEAD") {
    outcome_.bytes_sent = answer.body.size();
    head += answer.body;
  }
  connection_->send(head);
}

void Exchange::open_stream(HttpStream stream) {
  if (connection_ && !is_answered_ && !stream_) stream_ = std::move(stream);
}

void Exchange::begin_stream() {
  if (has_begun_) return;
  has_begun_ = true;
  outcome_.status = 200;
  // A client of HTTP/1.0 knows no chunks: there the connection's end is the stream's.
  if (connection_->is_http_1_0()) connection_->close_after_answer();
  std::string head = make_head(200, stream_->content_type, stream_->headers, connection_->closes());
  append_header(head, "x-request-id", request_.id);
  append_header(head, "Cache-Control", "no-cache");
  append_header(head, "X-Accel-Buffering", "no");  // proxies of the nginx kind would hold events back
  if (!connection_->is_http_1_0()) append_header(head, "Transfer-Encoding", "chunked");
  connection_->send(head + "\r\n");
}

void Exchange::append_chunk(std::string_view piece) {
  outcome_.bytes_sent += piece.size();
  if (connection_->is_http_1_0()) return connection_->send(piece);
  std::string chunk = fmt::format("{:x}\r\n", piece.size());
  chunk += piece;
  chunk += "\r\n";
  connection_->send(chunk);
}

void Exchange::write(std::string_view piece) {
  if (!connection_ || !stream_ || is_answered_ || piece.empty()) return;
  const std::shared_ptr<Connection> connection = connection_;  // cut() may end this exchange
  if (connection->backlog_bytes() > shared_->options.stream_backlog_bytes_max) {
    log_warning("{} takes its stream too slowly and is cut off", request_.peer);
    return connection->cut();
  }
  begin_stream();
  append_chunk(piece);
}

void Exchange::keep_alive() {
  if (stream_) write(stream_->keep_alive);
}

void Exchange::finish() {
  if (!connection_ || !stream_ || is_answered_) return;
  begin_stream();
  is_answered_ = true;
  on_gone_ = nullptr;
  connection_->send(connection_->is_http_1_0() ? "" : "0\r\n\r\n");
}

void Exchange::on_gone(std::function<void()> call) {
  if (is_answered_) return;
  if (is_gone_) return call();
  on_gone_ = std::move(call);
}

/// The body stays: a thread of the background may be reading it.
void Exchange::end(bool is_complete) {
  connection_.reset();
  is_gone_ = !is_complete;
  shared_->open_exchanges.fetch_sub(1, std::memory_order_relaxed);
  outcome_.is_complete = is_complete;
  outcome_.duration = Clock::now() - start_;
  const std::function<void()> call = std::exchange(on_gone_, nullptr);
  if (!is_complete && call) call();
  if (shared_->observer) shared_->observer(request_, outcome_);
}

// --- Connection: reading --------------------------------------------------------------------------------------------

void Connection::start() {
  shared_->open_connections.fetch_add(1, std::memory_order_relaxed);
  loop_->connections.insert(shared_from_this());
  ErrorValue ignored;  // a socket that cannot be set up fails at its first read
  socket_.set_option(Tcp::no_delay(true), ignored);
  begin_request();
  read();
}

void Connection::begin_request() {
  state_ = State::kReading;
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(static_cast<std::uint32_t>(shared_->options.header_bytes_max));
  parser_->body_limit(shared_->options.body_bytes_max);
  has_head_ = false;
  deadline_ = Clock::now() + shared_->options.idle_timeout;
}

void Connection::read() {
  if (is_reading_ || state_ == State::kClosed) return;
  is_reading_ = true;
  socket_.async_read_some(
      buffer_.prepare(kReadBytes),
      [self = shared_from_this()](const ErrorValue& error, size_t bytes) { self->handle_read(error, bytes); });
}

void Connection::handle_read(const ErrorValue& error, size_t bytes) {
  is_reading_ = false;
  if (state_ == State::kClosed) return;
  if (error) return cut();
  const bool is_first = buffer_.size() == 0;
  buffer_.commit(bytes);
  switch (state_) {
    case State::kReading:
      if (is_first && !has_head_) deadline_ = Clock::now() + shared_->options.head_timeout;
      return parse();
    case State::kAnswering:
      // Reading goes on, because that is how one hears that a client has left.
      if (buffer_.size() > kAheadBytesMax) return cut();
      return read();
    case State::kLingering:
      lingered_ += buffer_.size();
      buffer_.consume(buffer_.size());
      if (lingered_ > kLingerBytesMax) return cut();
      return read();
    case State::kClosed: return;
  }
}

void Connection::parse() {
  while (buffer_.size() > 0) {
    ErrorValue error;
    const size_t taken = parser_->put(buffer_.data(), error);
    buffer_.consume(taken);
    if (error == http::error::header_limit) return refuse(431, "the request's headers are too large");
    if (error == http::error::body_limit) return refuse(413, "the request's body is too large");
    if (error && error != http::error::need_more) return refuse(400, "this is no HTTP/1.1 request");
    if (parser_->is_header_done() && !has_head_ && !check_head()) return;
    if (has_head_ && !count_body()) return;
    if (parser_->is_done()) return dispatch();
    if (taken == 0) break;
  }
  read();
}

/// All but the body.
HttpRequest make_request(const http::request<http::string_body>& message, const Tcp::socket& socket, IdSource& ids) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  std::string target(message.target());
  if (const size_t scheme = target.find("://"); scheme != std::string::npos && target.front() != '/') {
    const size_t slash = target.find('/', scheme + 3);
    target = slash == std::string::npos ? "/" : target.substr(slash);
  }
  const size_t mark = target.find_first_of("?#");
  request.path = target.substr(0, mark);
  if (mark != std::string::npos && target[mark] == '?') request.query = target.substr(mark + 1);
  for (const auto& field : message) {
    request.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  }
  ErrorValue error;
  const Tcp::endpoint peer = socket.remote_endpoint(error);
  if (!error) request.peer = fmt::format("{}:{}", peer.address().to_string(), peer.port());
  const std::string* id = request.find_header("x-request-id");
  request.id = id != nullptr && !id->empty() && id->size() <= kRequestIdBytesMax ? *id : "req_" + ids.id();
  return request;
}

std::optional<HttpAnswer> check_request(const Shared& shared, const HttpRequest& request) {
  if (!shared.head_check) return std::nullopt;
  try {
    return shared.head_check(request);
  } catch (const std::exception& error) {
    log_error("{} {}: {}", request.method, request.path, error.what());
    return internal_error();
  }
}

bool Connection::check_head() {
  has_head_ = true;
  const auto length = parser_->content_length();
  if (length && *length > shared_->options.body_bytes_max) {
    refuse(413, "the request's body is too large");
    return false;
  }
  request_ = make_request(parser_->get(), socket_, shared_->ids);
  body_start_ = Clock::now();
  if (std::optional<HttpAnswer> refusal = check_request(*shared_, request_)) {
    refuse_head(std::move(*refusal));
    return false;
  }
  if (boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) send("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

bool Connection::count_body() {
  const HttpServerOptions& options = shared_->options;
  const size_t size = parser_->get().body().size();
  // Without the second one a byte a minute would hold a body's memory for days.
  const std::chrono::milliseconds due(size * 1000 / std::max<size_t>(options.body_rate_min, 1));
  deadline_ = std::min(Clock::now() + options.body_timeout, body_start_ + options.body_timeout + due);
  if (size <= options.small_body_bytes) return true;
  if (size > reserved_ && !shared_->reserve_body(size - reserved_)) {
    refuse(503, "too many large requests at once");
    return false;
  }
  reserved_ = std::max(reserved_, size);
  return true;
}

void Connection::dispatch() {
  http::request<http::string_body> message = parser_->release();
  is_http_1_0_ = message.version() < 11;
  closes_ = !message.keep_alive() || shared_->is_draining;
  request_.body = std::move(message.body());
  open_exchange();
  read();
  const std::shared_ptr<Exchange> exchange = exchange_;
  try {
    shared_->handler(exchange);
  } catch (const std::exception& error) {
    log_error("{} {}: {}", exchange->request().method, exchange->request().path, error.what());
    exchange->respond(internal_error());
  }
}

void Connection::open_exchange() {
  parser_.reset();
  state_ = State::kAnswering;
  exchange_ = std::make_shared<Exchange>(shared_from_this(), loop_, shared_, std::exchange(request_, {}),
                                         std::exchange(reserved_, 0));
  shared_->open_exchanges.fetch_add(1, std::memory_order_relaxed);
  last_write_ = Clock::now();
}

/// Answers from the head alone. What comes of a body is not taken: the connection closes then.
void Connection::refuse_head(HttpAnswer refusal) {
  const bool is_whole = parser_->is_done();
  is_http_1_0_ = parser_->get().version() < 11;
  closes_ = !is_whole || !parser_->get().keep_alive() || shared_->is_draining;
  if (!is_whole) buffer_.consume(buffer_.size());
  open_exchange();
  if (is_whole) read();
  exchange_->respond(std::move(refusal));
}

/// Answers what is no request, or none that may be read to its end.
void Connection::refuse(int status, std::string_view message) {
  shared_->release_body(std::exchange(reserved_, 0));
  parser_.reset();
  buffer_.consume(buffer_.size());
  state_ = State::kAnswering;
  closes_ = true;
  last_write_ = Clock::now();
  const std::string body = refusal_body(message);
  std::string head = make_head(status, "application/json", {}, true);
  append_header(head, "Content-Length", std::to_string(body.size()));
  send(head + "\r\n" + body);
}

// --- Connection: writing and ending ---------------------------------------------------------------------------------

void Connection::send(std::string_view bytes) {
  if (state_ == State::kClosed) return;
  out_ += bytes;
  if (!is_writing_) write_more();
}

void Connection::write_more() {
  if (written_ == writing_.size()) {
    writing_.clear();
    written_ = 0;
    std::swap(writing_, out_);
  }
  is_writing_ = true;
  last_write_ = Clock::now();
  socket_.async_write_some(
      asio::buffer(writing_.data() + written_, writing_.size() - written_),
      [self = shared_from_this()](const ErrorValue& error, size_t bytes) { self->handle_write(error, bytes); });
}

void Connection::handle_write(const ErrorValue& error, size_t bytes) {
  is_writing_ = false;
  if (state_ == State::kClosed) return;
  if (error) return cut();
  written_ += bytes;
  if (backlog_bytes() > 0) return write_more();
  handle_flushed();
}

void Connection::handle_flushed() {
  if (state_ != State::kAnswering) return;  // a "100 Continue"
  if (exchange_ && !exchange_->is_answered()) return;
  if (exchange_) std::exchange(exchange_, nullptr)->end(true);
  has_served_ = true;
  if (closes_ || shared_->is_draining) return linger();
  begin_request();
  parse();  // what came ahead
}

/// Closes without a reset, which could overtake the answer: says that nothing follows, and waits for the client to do
/// the same.
void Connection::linger() {
  state_ = State::kLingering;
  deadline_ = Clock::now() + kLingerTime;
  buffer_.consume(buffer_.size());
  ErrorValue error;
  socket_.shutdown(Tcp::socket::shutdown_send, error);
  if (error) return cut();
  read();
}

void Connection::cut() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  const std::shared_ptr<Connection> self = shared_from_this();
  ErrorValue ignored;  // it is closed either way
  socket_.close(ignored);
  shared_->release_body(std::exchange(reserved_, 0));
  if (exchange_) std::exchange(exchange_, nullptr)->end(false);
  loop_->connections.erase(self);
  shared_->open_connections.fetch_sub(1, std::memory_order_relaxed);
}

void Connection::look_at_clock(Clock::time_point now) {
  const HttpServerOptions& options = shared_->options;
  if (is_writing_ && now - last_write_ > options.write_timeout) return cut();
  if (state_ == State::kAnswering) {
    const bool is_quiet = !is_writing_ && now - last_write_ >= options.keep_alive_interval;
    if (is_quiet && exchange_ && exchange_->is_stream()) exchange_->keep_alive();
    return;
  }
  if (now < deadline_) return;
  const bool is_within_request = state_ == State::kReading && (has_head_ || buffer_.size() > 0);
  if (!is_within_request) return cut();
  refuse(408, "the request did not arrive in time");
}

/// What one connection throws, memory that cannot be had say, must not end the others.
void run_loop(Loop& loop) {
  while (true) {
    try {
      loop.context.run();
      return;
    } catch (const std::exception& error) {
      log_error("a connection failed: {}", error.what());
    }
  }
}

}  // namespace

// --- HttpServer -----------------------------------------------------------------------------------------------------

struct HttpServer::Impl {
  std::shared_ptr<Shared> shared;
  std::vector<std::shared_ptr<Loop>> loops;
  std::optional<Tcp::acceptor> acceptor;  ///< on loops[0]
  std::optional<asio::steady_timer> accept_timer;
  size_t next_loop = 0;
  uint16_t port = 0;
  bool is_stopped = false;

  void listen();
  void start_threads();
  void accept();
  void handle_accept(const ErrorValue& error, Tcp::socket socket, const std::shared_ptr<Loop>& loop);
  void sweep(const std::shared_ptr<Loop>& loop);
  void on_every_loop(const std::function<void(Loop&)>& call);
  void stop(std::chrono::milliseconds grace);
};

void HttpServer::Impl::listen() {
  const HttpServerOptions& options = shared->options;
  const std::string host = options.host == "localhost" ? "127.0.0.1" : options.host;
  ErrorValue error;
  const asio::ip::address address = asio::ip::make_address(host, error);
  if (error) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--host {}: is no IP address; 127.0.0.1 serves this machine only, 0.0.0.0 every network",
                            printable(options.host)));
  }
  try {
    acceptor.emplace(loops.front()->context);
    const Tcp::endpoint endpoint(address, options.port);
    acceptor->open(endpoint.protocol());
    acceptor->set_option(Tcp::acceptor::reuse_address(true));
    acceptor->bind(endpoint);
    acceptor->listen(4096);
    port = acceptor->local_endpoint().port();
  } catch (const boost::system::system_error& refused) {
    throw Error(ErrorCode::kIo, fmt::format("cannot listen on {} port {}: {}; another --port may be free", host,
                                            options.port, refused.code().message()));
  }
}

void HttpServer::Impl::start_threads() {
  accept_timer.emplace(loops.front()->context);
  asio::post(loops.front()->context, [this] { accept(); });
  for (const std::shared_ptr<Loop>& loop : loops) {
    asio::post(loop->context, [this, loop] { sweep(loop); });
    loop->thread = std::jthread([loop] { run_loop(*loop); });
  }
}

void HttpServer::Impl::accept() {
  if (!acceptor->is_open()) return;
  const std::shared_ptr<Loop> loop = loops[next_loop++ % loops.size()];
  acceptor->async_accept(loop->context, [this, loop](const ErrorValue& error, Tcp::socket socket) {
    handle_accept(error, std::move(socket), loop);
  });
}

void HttpServer::Impl::handle_accept(const ErrorValue& error, Tcp::socket socket, const std::shared_ptr<Loop>& loop) {
  if (!acceptor->is_open()) return;
  if (error) {
    log_warning("cannot accept a connection: {}", error.message());
    accept_timer->expires_after(kAcceptPause);
    accept_timer->async_wait([this](const ErrorValue& cancelled) {
      if (!cancelled) accept();
    });
    return;
  }
  accept();
  if (shared->open_connections >= shared->options.connections_max) {
    log_warning("there are {} connections already; one more is closed", shared->options.connections_max);
    return;
  }
  const auto connection = std::make_shared<Connection>(std::move(socket), loop, shared);
  asio::post(loop->context, [connection] { connection->start(); });
}

void HttpServer::Impl::sweep(const std::shared_ptr<Loop>& loop) {
  // First of all, so that the clock goes on whatever a connection throws.
  loop->sweep_timer.expires_after(shared->options.tick);
  loop->sweep_timer.async_wait([this, loop](const ErrorValue& cancelled) {
    if (!cancelled && loop->work) sweep(loop);
  });
  const Clock::time_point now = Clock::now();
  const std::vector<std::shared_ptr<Connection>> connections(loop->connections.begin(), loop->connections.end());
  for (const std::shared_ptr<Connection>& connection : connections)
    connection->look_at_clock(now);
}

/// Runs `call` on every loop's thread and waits for it.
void HttpServer::Impl::on_every_loop(const std::function<void(Loop&)>& call) {
  for (const std::shared_ptr<Loop>& loop : loops) {
    std::promise<void> is_done;
    asio::post(loop->context, [&] {
      call(*loop);
      is_done.set_value();
    });
    is_done.get_future().wait();
  }
}

void HttpServer::Impl::stop(std::chrono::milliseconds grace) {
  if (std::exchange(is_stopped, true)) return;
  shared->is_draining = true;
  const Clock::time_point end = Clock::now() + grace;
  const auto cut_all = [this](bool is_busy_too) {
    on_every_loop([is_busy_too](Loop& loop) {
      const std::vector<std::shared_ptr<Connection>> connections(loop.connections.begin(), loop.connections.end());
      for (const std::shared_ptr<Connection>& connection : connections)
        is_busy_too ? connection->cut() : connection->cut_if_idle();
    });
  };
  // Who comes meanwhile is told that this server is leaving.
  cut_all(false);
  while (shared->open_exchanges > 0 && !shared->is_hurried && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  on_every_loop([this](Loop& loop) {
    ErrorValue ignored;  // closed either way
    if (&loop == loops.front().get()) acceptor->close(ignored);
  });
  cut_all(true);
  shared->background->join();
  on_every_loop([](Loop& loop) {
    loop.sweep_timer.cancel();
    loop.work.reset();
  });
  for (const std::shared_ptr<Loop>& loop : loops)
    loop->thread.join();
  // What was handed to the background too late dies with it; what that in turn posts runs here, so that nothing keeps
  // itself alive in a queue that nobody reads.
  shared->background.reset();
  for (const std::shared_ptr<Loop>& loop : loops) {
    loop->context.restart();
    loop->context.poll();
  }
}

HttpServer::HttpServer(HttpServerOptions options, Handler handler, Observer observer, HeadCheck check)
    : impl_(std::make_unique<Impl>()) {
  const size_t io_threads = std::max<size_t>(options.io_threads, 1);
  impl_->shared =
      std::make_shared<Shared>(std::move(options), std::move(handler), std::move(observer), std::move(check));
  for (size_t i = 0; i < io_threads; ++i)
    impl_->loops.push_back(std::make_shared<Loop>());
  impl_->listen();
  impl_->shared->background =
      std::make_unique<asio::thread_pool>(std::max<size_t>(impl_->shared->options.background_threads, 1));
  impl_->start_threads();
}

// NOLINTNEXTLINE(bugprone-exception-escape): a server that cannot be stopped ends the program
HttpServer::~HttpServer() {
  stop(std::chrono::milliseconds(0));
}

uint16_t HttpServer::port() const {
  return impl_->port;
}

std::string HttpServer::url() const {
  std::string host = impl_->shared->options.host;
  if (host == "0.0.0.0" || host == "::" || host == "localhost") host = "127.0.0.1";
  if (host.find(':') != std::string::npos) host = fmt::format("[{}]", host);
  return "http://" + host + fmt::format(":{}", impl_->port);
}

size_t HttpServer::open_exchanges() const {
  return impl_->shared->open_exchanges;
}

size_t HttpServer::open_connections() const {
  return impl_->shared->open_connections;
}

double HttpServer::io_cpu_seconds() const {
  double seconds = 0;
  for (const std::shared_ptr<Loop>& loop : impl_->loops) {
    clockid_t clock{};
    timespec time{};
    if (!loop->thread.joinable()) continue;
    if (::pthread_getcpuclockid(loop->thread.native_handle(), &clock) != 0 || ::clock_gettime(clock, &time) != 0)
      continue;
    seconds += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }
  return seconds;
}

void HttpServer::drain() {
  impl_->shared->is_draining = true;
}

void HttpServer::hurry() {
  impl_->shared->is_hurried = true;
}

void HttpServer::stop(std::chrono::milliseconds grace) {
  impl_->stop(grace);
}

}  // namespace tidepool
