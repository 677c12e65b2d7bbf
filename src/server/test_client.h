#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "server/http.h"
#include "text/json.h"

/// A client for tests that shows every byte. Blocking; gives up after a minute.
namespace tidepool::server_testing {

struct Event {
  std::string name;  ///< "" where the stream has none
  std::string data;
};

struct Response {
  int status = 0;  ///< 0: the connection ended before there was an answer
  std::vector<HttpHeader> headers;
  std::string body;
  bool is_complete = false;  ///< the body came to its end

  [[nodiscard]] std::string header(std::string_view name) const {
    for (const HttpHeader& header : headers) {
      if (is_same_header(header.name, name)) return header.value;
    }
    return "";
  }
  [[nodiscard]] Json json() const { return parse_json(body); }
  /// The events of a stream; comments are left out.
  [[nodiscard]] std::vector<Event> events() const {
    std::vector<Event> events;
    Event event;
    size_t begin = 0;
    while (begin < body.size()) {
      const size_t end = std::min(body.find('\n', begin), body.size());
      const std::string line = body.substr(begin, end - begin);
      begin = end + 1;
      if (line.empty() && !event.data.empty()) events.push_back(std::exchange(event, {}));
      if (line.starts_with("event: ")) event.name = line.substr(7);
      if (line.starts_with("data: ")) event.data += line.substr(6);
    }
    return events;
  }
};

class Client {
 public:
  /// `receive_bytes` above 0: how much the system takes in for a reader that does not read.
  explicit Client(uint16_t port, int receive_bytes = 0) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    TIDEPOOL_CHECK(socket_ >= 0, "a socket");
    const timeval limit{600, 0};  // for what hangs: under sanitizers, on a busy machine, an answer may take a minute
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (receive_bytes > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    const int on = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  [[nodiscard]] bool is_connected() const { return is_connected_; }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  /// Says that nothing more comes, and goes on reading.
  void end_sending() const { ::shutdown(socket_, SHUT_WR); }
  /// Ends with a reset instead of a polite goodbye.
  void reset() {
    const linger now{1, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close();
  }

  /// False when the other side has gone.
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  bool send_request(std::string_view method, std::string_view path, std::string_view body = "",
                    const std::vector<HttpHeader>& headers = {}) const {
    std::string text = std::string(method) + " " + std::string(path) + " HTTP/1.1\r\n";
    bool has_host = false;
    for (const HttpHeader& header : headers) {
      text += header.name + ": " + header.value + "\r\n";
      has_host = has_host || is_same_header(header.name, "host");
    }
    if (!has_host) text += "Host: 127.0.0.1\r\n";
    if (!body.empty() || method == "POST") text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    return send(text + "\r\n" + std::string(body));
  }

  /// The next answer, to its end or that of the connection.
  [[nodiscard]] Response read_response(bool has_body = true) {
    Response response = read_head();
    if (response.status == 0 || !has_body || response.status == 204) {
      response.is_complete = response.status != 0;
      return response;
    }
    if (response.header("Transfer-Encoding") == "chunked") {
      read_chunks(response);
    } else if (const std::string length = response.header("Content-Length"); !length.empty()) {
      const size_t bytes = std::strtoull(length.c_str(), nullptr, 10);
      response.is_complete = fill(bytes);
      response.body = take(std::min(bytes, pending_.size()));
    } else {
      while (fill(pending_.size() + 1)) {
      }
      response.body = take(pending_.size());
      response.is_complete = true;
    }
    return response;
  }
  /// Status and headers.
  [[nodiscard]] Response read_head() {
    Response response;
    const std::string status_line = read_line();
    if (status_line.size() < 12) return response;
    response.status = std::atoi(status_line.substr(9, 3).c_str());
    for (std::string line = read_line(); !line.empty(); line = read_line()) {
      const size_t colon = line.find(": ");
      if (colon != std::string::npos) response.headers.push_back({line.substr(0, colon), line.substr(colon + 2)});
    }
    return response;
  }
  /// Bytes of the body, chunk marks included, until `text` was among them; what came when the connection ends first.
  [[nodiscard]] std::string read_until(std::string_view text) {
    size_t at = pending_.find(text);
    while (at == std::string::npos) {
      if (!fill(pending_.size() + 1)) return take(pending_.size());
      at = pending_.find(text);
    }
    return take(at + text.size());
  }
  /// Whether the other side ends the connection, after at most what is left to read.
  [[nodiscard]] bool is_ended() {
    while (fill(pending_.size() + 1))
      pending_.clear();
    return is_at_end_;
  }

 private:
  /// Whether so many bytes are there.
  bool fill(size_t bytes) {
    char buffer[65536];
    while (pending_.size() < bytes) {
      const ssize_t got = ::recv(socket_, buffer, sizeof(buffer), 0);
      if (got <= 0) {
        is_at_end_ = got == 0 || errno == ECONNRESET;
        return false;
      }
      pending_.append(buffer, static_cast<size_t>(got));
    }
    return true;
  }
  std::string take(size_t bytes) {
    std::string text = pending_.substr(0, bytes);
    pending_.erase(0, bytes);
    return text;
  }
  std::string read_line() {
    std::string line = read_until("\r\n");
    if (line.ends_with("\r\n")) line.resize(line.size() - 2);
    return line;
  }
  void read_chunks(Response& response) {
    while (true) {
      const std::string line = read_line();
      if (line.empty()) return;
      const size_t bytes = std::strtoull(line.c_str(), nullptr, 16);
      if (!fill(bytes + 2)) return;
      response.body += take(bytes + 2).substr(0, bytes);
      if (bytes == 0) {
        response.is_complete = true;
        return;
      }
    }
  }

  int socket_;
  bool is_connected_ = false;
  bool is_at_end_ = false;
  std::string pending_;
};

/// One request on a connection of its own.
[[nodiscard]] inline Response ask(uint16_t port, std::string_view method, std::string_view path,
                                  std::string_view body = "", const std::vector<HttpHeader>& headers = {}) {
  Client client(port);
  client.send_request(method, path, body, headers);
  return client.read_response(method != "HEAD");
}

}  // namespace tidepool::server_testing
