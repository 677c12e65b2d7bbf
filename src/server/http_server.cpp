#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <ctime>
#include <exception>
#include <future>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "server/http_internal.h"

namespace tidepool {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using ErrorValue = boost::system::error_code;
using Clock = std::chrono::steady_clock;

/// Between attempts to accept when the system has no descriptor left.
constexpr std::chrono::milliseconds kAcceptPause{100};

/// A loop with its thread.
struct Loop final : public HttpLoop {
  std::optional<asio::io_context::work> work{context()};
  asio::steady_timer sweep_timer{context()};
  std::jthread thread;
};

/// What one connection throws, memory that cannot be had say, must not end the others.
void run_loop(Loop& loop) {
  while (true) {
    try {
      loop.context().run();
      return;
    } catch (const std::exception& error) {
      log_error("a connection failed: {}", error.what());
    }
  }
}

}  // namespace

// --- what the parts share -------------------------------------------------------------------------------------------

HttpShared::HttpShared(HttpServerOptions given, HttpServer::Handler handle, HttpServer::Observer observe,
                       HttpServer::HeadCheck check)
    : options(std::move(given)),
      handler(std::move(handle)),
      observer(std::move(observe)),
      head_check(std::move(check)),
      background(std::make_unique<asio::thread_pool>(std::max<size_t>(options.background_threads, 1))) {}

HttpShared::~HttpShared() = default;

void HttpShared::run_in_background(std::function<void()> call) const {
  if (!background) return call();  // the last things of a server that has stopped
  asio::post(*background, std::move(call));
}

HttpLoop::HttpLoop() : context_(std::make_unique<asio::io_context>(1)) {}

HttpLoop::~HttpLoop() = default;

void HttpLoop::post(std::function<void()> call) {
  asio::post(*context_, std::move(call));
}

// --- HttpServer -----------------------------------------------------------------------------------------------------

struct HttpServer::Impl {
  std::shared_ptr<HttpShared> shared;
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
    acceptor.emplace(loops.front()->context());
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
  accept_timer.emplace(loops.front()->context());
  loops.front()->post([this] { accept(); });
  for (const std::shared_ptr<Loop>& loop : loops) {
    loop->post([this, loop] { sweep(loop); });
    loop->thread = std::jthread([loop] { run_loop(*loop); });
  }
}

void HttpServer::Impl::accept() {
  if (!acceptor->is_open()) return;
  const std::shared_ptr<Loop> loop = loops[next_loop++ % loops.size()];
  acceptor->async_accept(loop->context(), [this, loop](const ErrorValue& error, Tcp::socket socket) {
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
  const auto connection = make_http_connection(socket.release(), loop, shared);
  loop->post([connection] { connection->start(); });
}

void HttpServer::Impl::sweep(const std::shared_ptr<Loop>& loop) {
  // First of all, so that the clock goes on whatever a connection throws.
  loop->sweep_timer.expires_after(shared->options.tick);
  loop->sweep_timer.async_wait([this, loop](const ErrorValue& cancelled) {
    if (!cancelled && loop->work) sweep(loop);
  });
  const Clock::time_point now = Clock::now();
  const std::vector<std::shared_ptr<HttpConnection>> connections(loop->connections().begin(),
                                                                 loop->connections().end());
  for (const std::shared_ptr<HttpConnection>& connection : connections)
    connection->look_at_clock(now);
}

/// Runs `call` on every loop's thread and waits for it.
void HttpServer::Impl::on_every_loop(const std::function<void(Loop&)>& call) {
  for (const std::shared_ptr<Loop>& loop : loops) {
    std::promise<void> is_done;
    loop->post([&] {
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
      const std::vector<std::shared_ptr<HttpConnection>> connections(loop.connections().begin(),
                                                                     loop.connections().end());
      for (const std::shared_ptr<HttpConnection>& connection : connections)
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
    loop->context().restart();
    loop->context().poll();
  }
}

HttpServer::HttpServer(HttpServerOptions options, Handler handler, Observer observer, HeadCheck check)
    : impl_(std::make_unique<Impl>()) {
  const size_t io_threads = std::max<size_t>(options.io_threads, 1);
  impl_->shared =
      std::make_shared<HttpShared>(std::move(options), std::move(handler), std::move(observer), std::move(check));
  for (size_t i = 0; i < io_threads; ++i)
    impl_->loops.push_back(std::make_shared<Loop>());
  impl_->listen();
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
