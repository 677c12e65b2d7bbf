#include <fmt/format.h>

#include <exception>

#include "base/log.h"
#include "server/http_internal.h"
#include "server/http_message.h"

namespace tidepool {

ConnectionExchange::ConnectionExchange(std::shared_ptr<HttpConnection> connection, std::shared_ptr<HttpLoop> loop,
                                       std::shared_ptr<HttpShared> shared, HttpRequest request, size_t reserved)
    : connection_(std::move(connection)),
      loop_(std::move(loop)),
      shared_(std::move(shared)),
      request_(std::move(request)),
      reserved_(reserved) {}

void ConnectionExchange::post(std::function<void()> call) {
  loop_->post(std::move(call));
}

void ConnectionExchange::background(std::function<void()> call) {
  shared_->run_in_background([self = shared_from_this(), run = std::move(call)] {
    try {
      run();
    } catch (const std::exception& error) {
      log_error("{} {}: {}", self->request_.method, self->request_.path, error.what());
      self->respond(internal_error());
    }
  });
}

void ConnectionExchange::respond(HttpAnswer answer) {
  post([self = shared_from_this(), whole = std::move(answer)] { self->respond_here(whole); });
}

void ConnectionExchange::respond_here(const HttpAnswer& answer) {
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

void ConnectionExchange::open_stream(HttpStream stream) {
  if (connection_ && !is_answered_ && !stream_) stream_ = std::move(stream);
}

void ConnectionExchange::begin_stream() {
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

void ConnectionExchange::append_chunk(std::string_view piece) {
  outcome_.bytes_sent += piece.size();
  if (connection_->is_http_1_0()) return connection_->send(piece);
  std::string chunk = fmt::format("{:x}\r\n", piece.size());
  chunk += piece;
  chunk += "\r\n";
  connection_->send(chunk);
}

void ConnectionExchange::write(std::string_view piece) {
  if (!connection_ || !stream_ || is_answered_ || piece.empty()) return;
  const std::shared_ptr<HttpConnection> connection = connection_;  // cut() may end this exchange
  if (connection->backlog_bytes() > shared_->options.stream_backlog_bytes_max) {
    log_warning("{} takes its stream too slowly and is cut off", request_.peer);
    return connection->cut();
  }
  begin_stream();
  append_chunk(piece);
}

void ConnectionExchange::keep_alive() {
  if (stream_) write(stream_->keep_alive);
}

void ConnectionExchange::finish() {
  if (!connection_ || !stream_ || is_answered_) return;
  begin_stream();
  is_answered_ = true;
  on_gone_ = nullptr;
  connection_->send(connection_->is_http_1_0() ? "" : "0\r\n\r\n");
}

void ConnectionExchange::on_gone(std::function<void()> call) {
  if (is_answered_) return;
  if (is_gone_) return call();
  on_gone_ = std::move(call);
}

/// The body stays: a thread of the background may be reading it.
void ConnectionExchange::end(bool is_complete) {
  connection_.reset();
  is_gone_ = !is_complete;
  shared_->open_exchanges.fetch_sub(1, std::memory_order_relaxed);
  outcome_.is_complete = is_complete;
  outcome_.duration = std::chrono::steady_clock::now() - start_;
  const std::function<void()> call = std::exchange(on_gone_, nullptr);
  if (!is_complete && call) call();
  if (shared_->observer) shared_->observer(request_, outcome_);
}

}  // namespace tidepool
