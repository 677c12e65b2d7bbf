// Many clients that read streams from a running server at once: `serve_bench http://127.0.0.1:8000 MODEL`. Prints the
// gaps between tokens as the clients see them, and what a token costs the server's connection threads, which the server
// tells in its metrics. It knows the server by its address only.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool {
namespace {

using Clock = std::chrono::steady_clock;

struct Plan {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string model;
  size_t clients = 1000;
  size_t tokens = 64;
};

/// "http://127.0.0.1:8000"
void read_url(std::string url, Plan& plan) {
  constexpr std::string_view kScheme = "http://";
  if (url.starts_with(kScheme)) url.erase(0, kScheme.size());
  const size_t colon = url.find(':');
  plan.host = url.substr(0, colon);
  if (colon != std::string::npos) plan.port = static_cast<uint16_t>(std::stoul(url.substr(colon + 1)));
}

int connect_to(const Plan& plan) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(plan.port);
  if (::inet_pton(AF_INET, plan.host.c_str(), &address.sin_addr) != 1) {
    throw std::runtime_error(plan.host + " is no IPv4 address");
  }
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0 || ::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error(fmt::format("cannot connect to {} port {}", plan.host, plan.port));
  }
  return descriptor;
}

void send_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(descriptor, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) throw std::runtime_error("the server takes no request");
    text.remove_prefix(static_cast<size_t>(sent));
  }
}

/// The value of the first series of a metric.
double metric(const Plan& plan, const std::string& name) {
  const int descriptor = connect_to(plan);
  send_all(descriptor, "GET /metrics HTTP/1.0\r\n\r\n");
  std::string text;
  std::array<char, 65536> buffer{};
  for (ssize_t got = 1; got > 0;) {
    got = ::recv(descriptor, buffer.data(), buffer.size(), 0);
    if (got > 0) text.append(buffer.data(), static_cast<size_t>(got));
  }
  ::close(descriptor);
  const size_t at = text.find("\n" + name + "{");
  if (at == std::string::npos) throw std::runtime_error("the server has no metric " + name);
  return std::strtod(text.c_str() + text.find("} ", at) + 2, nullptr);
}

/// One client: counts the events of its stream and when they came.
struct Client {
  int descriptor = -1;
  std::string tail;  ///< the last bytes, in which a mark may have begun
  size_t events = 0;
  bool is_done = false;
  Clock::time_point last;
};

struct Result {
  std::vector<double> gaps_ms;
  size_t events = 0;
  size_t failures = 0;
};

/// Counts the ends of events in what came.
void take(Client& client, std::string_view piece, Result& result) {
  std::string text = client.tail + std::string(piece);
  size_t at = 0;
  size_t end = 0;
  while ((at = text.find("\n\n", end)) != std::string::npos) {
    const std::string_view event = std::string_view(text).substr(end, at - end);
    end = at + 2;
    if (event.find("\"error\"") != std::string_view::npos) ++result.failures;
    if (event.find("[DONE]") != std::string_view::npos) {
      client.is_done = true;
      return;
    }
    const Clock::time_point now = Clock::now();
    if (client.events > 0) {
      result.gaps_ms.push_back(std::chrono::duration<double, std::milli>(now - client.last).count());
    }
    client.last = now;
    ++client.events;
    ++result.events;
  }
  client.tail = text.substr(end);
}

std::string request_text(const Plan& plan, size_t number) {
  const std::string body = fmt::format(
      R"({{"model":"{}","prompt":"client {}","max_tokens":{},"ignore_eos":true,"stream":true,"temperature":1}})",
      plan.model, number, plan.tokens);
  return fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", body.size(),
                     body);
}

Result run_clients(const Plan& plan) {
  const int poll = ::epoll_create1(EPOLL_CLOEXEC);
  std::vector<Client> clients(plan.clients);
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i].descriptor = connect_to(plan);
    send_all(clients[i].descriptor, request_text(plan, i));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    ::epoll_ctl(poll, EPOLL_CTL_ADD, clients[i].descriptor, &event);
  }
  Result result;
  std::array<epoll_event, 256> ready{};
  std::array<char, 65536> buffer{};
  for (size_t open = clients.size(); open > 0;) {
    const int count = ::epoll_wait(poll, ready.data(), static_cast<int>(ready.size()), -1);
    for (int i = 0; i < count; ++i) {
      Client& client = clients[ready[static_cast<size_t>(i)].data.u64];
      const ssize_t got = ::recv(client.descriptor, buffer.data(), buffer.size(), 0);
      if (got > 0) take(client, {buffer.data(), static_cast<size_t>(got)}, result);
      if (got > 0 && !client.is_done) continue;
      if (!client.is_done) ++result.failures;
      ::close(client.descriptor);
      --open;
    }
  }
  ::close(poll);
  return result;
}

double percentile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const auto at = static_cast<ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<size_t>(at)];
}

int bench(const Plan& plan) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const double cpu_before = metric(plan, "tidepool:http_cpu_seconds_total");
  const Clock::time_point start = Clock::now();
  Result result = run_clients(plan);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const double cpu = metric(plan, "tidepool:http_cpu_seconds_total") - cpu_before;
  fmt::print("clients {}, events {}, failures {}, {:.1f} s, {:.0f} events/s\n", plan.clients, result.events,
             result.failures, seconds, static_cast<double>(result.events) / seconds);
  fmt::print("gap between events, ms: p50 {:.1f}, p99 {:.1f}, max {:.1f}\n", percentile(result.gaps_ms, 0.5),
             percentile(result.gaps_ms, 0.99), percentile(result.gaps_ms, 1));
  fmt::print("server's connection threads: {:.1f} us of one core per token and stream\n",
             cpu * 1e6 / static_cast<double>(std::max<size_t>(result.events, 1)));
  return result.failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace tidepool

int main(int count, char** arguments) {
  if (count < 3) {
    fmt::print(stderr, "usage: serve_bench http://127.0.0.1:8000 MODEL [CLIENTS [TOKENS]]\n");
    return EXIT_FAILURE;
  }
  try {
    tidepool::Plan plan;
    tidepool::read_url(arguments[1], plan);
    plan.model = arguments[2];
    if (count > 3) plan.clients = std::stoul(arguments[3]);
    if (count > 4) plan.tokens = std::stoul(arguments[4]);
    return tidepool::bench(plan);
  } catch (const std::exception& error) {
    fmt::print(stderr, "serve_bench: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
