// The only file that knows Beast.
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <exception>

#include "base/log.h"
#include "server/http_internal.h"
#include "server/http_message.h"

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

class Connection final : public HttpConnection, public std::enable_shared_from_this<Connection> {
 public:
  Connection(int socket, std::shared_ptr<HttpLoop> loop, std::shared_ptr<HttpShared> shared)
      // Of which family it is plays no part for a socket that is connected.
      : socket_(loop->context(), Tcp::v4(), socket), loop_(std::move(loop)), shared_(std::move(shared)) {}

  void start() override;
  void cut() override;
  void cut_if_idle() override {
    if (has_served_ && !has_head_ && state_ == State::kReading) cut();
  }
  void look_at_clock(Clock::time_point now) override;

  [[nodiscard]] bool is_http_1_0() const override { return is_http_1_0_; }
  [[nodiscard]] bool closes() const override { return closes_; }
  void close_after_answer() override { closes_ = true; }
  void send(std::string_view bytes) override;
  [[nodiscard]] size_t backlog_bytes() const override { return out_.size() + writing_.size() - written_; }

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
  std::shared_ptr<HttpLoop> loop_;
  std::shared_ptr<HttpShared> shared_;
  State state_ = State::kReading;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  HttpRequest request_;  ///< from the end of its head on, without its body
  std::shared_ptr<ConnectionExchange> exchange_;
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

// --- reading --------------------------------------------------------------------------------------------------------

void Connection::start() {
  shared_->open_connections.fetch_add(1, std::memory_order_relaxed);
  loop_->connections().insert(shared_from_this());
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

std::optional<HttpAnswer> check_request(const HttpShared& shared, const HttpRequest& request) {
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
  const std::shared_ptr<ConnectionExchange> exchange = exchange_;
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
  exchange_ = std::make_shared<ConnectionExchange>(shared_from_this(), loop_, shared_, std::exchange(request_, {}),
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

// --- writing and ending ---------------------------------------------------------------------------------------------

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
  loop_->connections().erase(self);
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

}  // namespace

std::shared_ptr<HttpConnection> make_http_connection(int socket, std::shared_ptr<HttpLoop> loop,
                                                     std::shared_ptr<HttpShared> shared) {
  return std::make_shared<Connection>(socket, std::move(loop), std::move(shared));
}

}  // namespace tidepool
