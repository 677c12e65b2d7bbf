#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "base/error.h"
#include "server/http.h"
#include "server/test_client.h"

namespace tidepool {
namespace {

using server_testing::ask;
using server_testing::Client;
using server_testing::Response;
using std::chrono::milliseconds;
using testing::HasSubstr;

/// Something that a test waits for.
class Signal {
 public:
  void raise() {
    const std::lock_guard lock(mutex_);
    is_raised_ = true;
    raised_.notify_all();
  }
  [[nodiscard]] bool wait() {
    std::unique_lock lock(mutex_);
    return raised_.wait_for(lock, std::chrono::minutes(1), [this] { return is_raised_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable raised_;
  bool is_raised_ = false;
};

HttpServerOptions quick_options() {
  HttpServerOptions options;
  options.port = 0;
  options.tick = milliseconds(5);
  options.bodies_bytes_max = size_t{100} << 20;
  return options;
}

void answer(const std::shared_ptr<HttpExchange>& exchange, std::string body, int status = 200) {
  HttpAnswer whole;
  whole.status = status;
  whole.content_type = "text/plain";
  whole.body = std::move(body);
  exchange->respond(std::move(whole));
}

/// Says what it was asked.
void echo(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  answer(exchange, request.method + " " + request.path + " " + request.query + " " + request.body);
}

TEST(HttpServer, AnswersWithWhatTheRequestSaid) {
  const HttpServer server(quick_options(), echo);
  EXPECT_EQ(ask(server.port(), "POST", "/a/b?c=d", "text").body, "POST /a/b c=d text");
  EXPECT_EQ(ask(server.port(), "GET", "http://example.com/x?y").body, "GET /x y ");
  EXPECT_EQ(server.url(), "http://127.0.0.1:" + std::to_string(server.port()));
}

TEST(HttpServer, KeepsAConnectionForFurtherRequests) {
  const HttpServer server(quick_options(), echo);
  Client client(server.port());
  client.send_request("POST", "/1", "a");
  EXPECT_EQ(client.read_response().body, "POST /1  a");
  client.send_request("POST", "/2", "b");
  EXPECT_EQ(client.read_response().body, "POST /2  b");
}

TEST(HttpServer, AnswersRequestsThatComeAheadInOrder) {
  const HttpServer server(quick_options(), echo);
  Client client(server.port());
  client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(client.read_response().body, "GET /1  ");
  EXPECT_EQ(client.read_response().body, "GET /2  ");
}

TEST(HttpServer, ReadsRequestsInAnyPieces) {
  const HttpServer server(quick_options(), echo);
  const std::string text =
      "POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
  for (size_t cut = 1; cut < text.size(); cut += 7) {
    Client client(server.port());
    client.send(text.substr(0, cut));
    client.send(text.substr(cut));
    EXPECT_EQ(client.read_response().body, "POST /p  abcde") << cut;
  }
}

TEST(HttpServer, TellsAWaitingClientToSendItsBody) {
  const HttpServer server(quick_options(), echo);
  Client client(server.port());
  client.send("POST /p HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_THAT(client.read_until("\r\n\r\n"), HasSubstr("100 Continue"));
  client.send("ok");
  EXPECT_EQ(client.read_response().body, "POST /p  ok");
}

TEST(HttpServer, HeadHasNoBodyAndOldClientsGetAClosedConnection) {
  const HttpServer server(quick_options(), echo);
  Client head(server.port());
  head.send_request("HEAD", "/h");
  EXPECT_EQ(head.read_response(false).header("Content-Length"), "9");
  head.send_request("GET", "/g");
  EXPECT_EQ(head.read_response().body, "GET /g  ");
  Client old(server.port());
  old.send("GET /o HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.read_response().body, "GET /o  ");
  EXPECT_TRUE(old.is_ended());
}

TEST(HttpServer, EveryAnswerNamesItsRequest) {
  const HttpServer server(quick_options(), echo);
  EXPECT_EQ(ask(server.port(), "GET", "/", "", {{"X-Request-Id", "mine"}}).header("x-request-id"), "mine");
  EXPECT_THAT(ask(server.port(), "GET", "/").header("x-request-id"), testing::StartsWith("req_"));
}

// --- what is refused ------------------------------------------------------------------------------------------------

TEST(HttpServer, RefusesWhatIsNoRequest) {
  const HttpServer server(quick_options(), echo);
  for (const std::string garbage : {"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", "GET\r\n\r\n", "hello\r\n\r\n",
                                    "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
                                    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    Client client(server.port());
    client.send(garbage);
    EXPECT_EQ(client.read_response().status, 400) << garbage;
    EXPECT_TRUE(client.is_ended());
  }
}

TEST(HttpServer, RefusesLargeHeadersAndBodiesAndTheRefusalArrives) {
  HttpServerOptions options = quick_options();
  options.header_bytes_max = 1000;
  options.body_bytes_max = 1000;
  const HttpServer server(options, echo);
  EXPECT_EQ(ask(server.port(), "GET", "/", "", {{"X-Long", std::string(5000, 'a')}}).status, 431);
  EXPECT_EQ(ask(server.port(), "POST", "/", std::string(3'000'000, 'a')).status, 413);
  Client chunked(server.port());
  chunked.send("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + ("7d0\r\n" + std::string(2000, 'a')) + "\r\n");
  EXPECT_EQ(chunked.read_response().status, 413);
  EXPECT_EQ(ask(server.port(), "POST", "/", std::string(1000, 'a')).status, 200);
}

TEST(HttpServer, BodiesOfAllConnectionsTogetherHaveALimit) {
  HttpServerOptions options = quick_options();
  options.bodies_bytes_max = 1500;
  options.small_body_bytes = 500;
  Signal is_asked;
  std::shared_ptr<HttpExchange> held;
  const HttpServer server(options, [&](const std::shared_ptr<HttpExchange>& exchange) {
    if (exchange->request().path != "/hold") return echo(exchange);
    held = exchange;
    is_asked.raise();
  });
  Client holder(server.port());
  holder.send_request("POST", "/hold", std::string(1000, 'a'));
  ASSERT_TRUE(is_asked.wait());
  EXPECT_EQ(ask(server.port(), "POST", "/", std::string(1000, 'b')).status, 503);
  EXPECT_EQ(ask(server.port(), "POST", "/", std::string(500, 'b')).status, 200) << "small ones are always taken";
  held->post([&] { held->release_body(); });
  answer(held, "done");
  EXPECT_EQ(holder.read_response().body, "done");
  EXPECT_EQ(ask(server.port(), "POST", "/", std::string(1000, 'b')).status, 200);
  held.reset();
}

TEST(HttpServer, RequestsThatDoNotArriveAreGivenUp) {
  HttpServerOptions options = quick_options();
  options.head_timeout = milliseconds(20);
  options.body_timeout = milliseconds(20);
  options.idle_timeout = milliseconds(20);
  const HttpServer server(options, echo);
  Client head(server.port());
  head.send("GET / HTT");
  EXPECT_EQ(head.read_response().status, 408);
  Client body(server.port());
  body.send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(body.read_response().status, 408);
  Client silent(server.port());
  EXPECT_TRUE(silent.is_ended());
}

TEST(HttpServer, ABodyThatTricklesInIsGivenUpAlthoughSomethingAlwaysComes) {
  HttpServerOptions options = quick_options();
  options.body_timeout = milliseconds(100);
  const HttpServer server(options, echo);
  Client client(server.port());
  client.send("POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n");
  const std::jthread sender([&client](const std::stop_token& stop) {
    while (!stop.stop_requested() && client.send("a"))
      std::this_thread::sleep_for(milliseconds(5));
  });
  EXPECT_EQ(client.read_response().status, 408);
}

TEST(HttpServer, AClientThatEndsItsSendingSideIsGone) {
  Signal is_gone;
  const HttpServer server(quick_options(), [&](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->on_gone([&] { is_gone.raise(); });
  });
  Client client(server.port());
  client.send_request("GET", "/");
  client.end_sending();
  EXPECT_TRUE(is_gone.wait());
}

TEST(HttpServer, AHeadThatIsRefusedCostsNoBody) {
  const auto check = [](const HttpRequest& request) -> std::optional<HttpAnswer> {
    if (request.find_header("x-key") != nullptr) return std::nullopt;
    HttpAnswer refusal;
    refusal.status = 401;
    refusal.body = "no key for " + request.path;
    return refusal;
  };
  std::atomic<int> observed = 0;
  const HttpServer server(
      quick_options(), echo,
      [&](const HttpRequest&, const HttpOutcome& outcome) { observed += outcome.status == 401 ? 1 : 0; }, check);
  Client waiting(server.port());
  waiting.send("POST /p HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(waiting.read_response().status, 401) << "no 100 Continue, no wait for the body";
  EXPECT_TRUE(waiting.is_ended());
  const Response sent = ask(server.port(), "POST", "/q", std::string(3'000'000, 'a'));
  EXPECT_EQ(sent.status, 401);
  EXPECT_EQ(sent.body, "no key for /q");
  EXPECT_EQ(sent.header("Connection"), "close");
  Client kept(server.port());
  kept.send_request("GET", "/1");
  EXPECT_EQ(kept.read_response().status, 401);
  kept.send_request("POST", "/2", "b", {{"X-Key", "k"}});
  EXPECT_EQ(kept.read_response().body, "POST /2  b") << "without a body the connection goes on";
  EXPECT_EQ(observed, 3);
}

TEST(HttpServer, RefusesAHostThatIsNoAddressAndAPortThatIsTaken) {
  HttpServerOptions options = quick_options();
  options.host = "nowhere.example.com";
  EXPECT_THROW(HttpServer(options, echo), Error);
  const HttpServer server(quick_options(), echo);
  options = quick_options();
  options.port = server.port();
  EXPECT_THROW(HttpServer(options, echo), Error);
}

TEST(HttpServer, AHandlerThatThrowsIsAnInternalErrorWithoutDetails) {
  const HttpServer server(quick_options(), [](const std::shared_ptr<HttpExchange>& exchange) {
    if (exchange->request().path == "/here") throw std::runtime_error("secret");
    exchange->background([] { throw std::runtime_error("secret"); });
  });
  for (const std::string path : {"/here", "/there"}) {
    const Response response = ask(server.port(), "GET", path);
    EXPECT_EQ(response.status, 500);
    EXPECT_THAT(response.body, testing::Not(HasSubstr("secret")));
  }
}

// --- streams --------------------------------------------------------------------------------------------------------

/// Hands every exchange to the test.
class Held {
 public:
  HttpServer::Handler handler() {
    return [this](const std::shared_ptr<HttpExchange>& exchange) {
      exchange->on_gone([this] { is_gone.raise(); });
      exchange->open_stream({});
      const std::lock_guard lock(mutex_);
      exchange_ = exchange;
      is_asked.raise();
    };
  }
  std::shared_ptr<HttpExchange> wait() {
    EXPECT_TRUE(is_asked.wait());
    const std::lock_guard lock(mutex_);
    return std::move(exchange_);
  }
  Signal is_asked;
  Signal is_gone;

 private:
  std::mutex mutex_;
  std::shared_ptr<HttpExchange> exchange_;
};

void write(const std::shared_ptr<HttpExchange>& exchange, std::string text) {
  exchange->post([exchange, piece = std::move(text)] { exchange->write(piece); });
}
void finish(const std::shared_ptr<HttpExchange>& exchange) {
  exchange->post([exchange] { exchange->finish(); });
}

TEST(HttpServer, StreamsPieceByPiece) {
  Held held;
  const HttpServer server(quick_options(), held.handler());
  Client client(server.port());
  client.send_request("GET", "/");
  const auto exchange = held.wait();
  write(exchange, "data: 1\n\n");
  EXPECT_EQ(client.read_head().header("Content-Type"), "text/event-stream");
  EXPECT_EQ(client.read_until("\n\n\r\n"), "9\r\ndata: 1\n\n\r\n");
  write(exchange, "data: 2\n\n");
  finish(exchange);
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "9\r\ndata: 2\n\n\r\n0\r\n\r\n");
  EXPECT_EQ(server.open_connections(), 1U);
}

TEST(HttpServer, AStreamThatHasNotBegunCanStillBeRefused) {
  Held held;
  const HttpServer server(quick_options(), held.handler());
  Client client(server.port());
  client.send_request("GET", "/");
  answer(held.wait(), "no", 503);
  EXPECT_EQ(client.read_response().status, 503);
}

TEST(HttpServer, AQuietStreamIsKeptAlive) {
  Held held;
  HttpServerOptions options = quick_options();
  options.keep_alive_interval = milliseconds(10);
  const HttpServer server(options, held.handler());
  Client client(server.port());
  client.send_request("GET", "/");
  const auto exchange = held.wait();
  EXPECT_EQ(client.read_head().status, 200);
  EXPECT_THAT(client.read_until(": keep-alive\n\n"), HasSubstr(": keep-alive"));
  EXPECT_THAT(client.read_until(": keep-alive\n\n"), HasSubstr(": keep-alive"));
  finish(exchange);
  EXPECT_THAT(client.read_until("0\r\n\r\n"), HasSubstr("0\r\n\r\n"));
}

TEST(HttpServer, OldClientsGetStreamsWithoutChunks) {
  Held held;
  const HttpServer server(quick_options(), held.handler());
  Client client(server.port());
  client.send("GET / HTTP/1.0\r\n\r\n");
  const auto exchange = held.wait();
  write(exchange, "data: 1\n\n");
  finish(exchange);
  EXPECT_EQ(client.read_response().body, "data: 1\n\n");
}

TEST(HttpServer, SaysWhenAClientLeaves) {
  for (const bool is_polite : {true, false}) {
    Held held;
    const HttpServer server(quick_options(), held.handler());
    Client client(server.port());
    client.send_request("GET", "/");
    const auto exchange = held.wait();
    is_polite ? client.close() : client.reset();
    EXPECT_TRUE(held.is_gone.wait());
    Signal late;
    exchange->post([&] { exchange->on_gone([&] { late.raise(); }); });
    EXPECT_TRUE(late.wait()) << "who asks late hears it at once";
    write(exchange, "nobody reads this");
  }
}

TEST(HttpServer, AReaderThatDoesNotReadIsCutOffAndHoldsNobodyUp) {
  Held slow;
  HttpServerOptions options = quick_options();
  options.io_threads = 1;
  options.stream_backlog_bytes_max = 100'000;
  const HttpServer server(options, [&](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->request().path == "/slow" ? slow.handler()(exchange) : echo(exchange);
  });
  Client client(server.port(), 4096);
  client.send_request("GET", "/slow");
  const auto exchange = slow.wait();
  // More than the system's buffers of both sides and ours take.
  for (int i = 0; i < 2000; ++i)
    write(exchange, std::string(10'000, 'x'));
  EXPECT_EQ(ask(server.port(), "GET", "/other").body, "GET /other  ");
  EXPECT_TRUE(slow.is_gone.wait());
}

TEST(HttpServer, AReaderWhoStopsReadingIsCutOffInTime) {
  Held slow;
  HttpServerOptions options = quick_options();
  options.write_timeout = milliseconds(20);
  options.stream_backlog_bytes_max = size_t{100} << 20;
  const HttpServer server(options, slow.handler());
  Client client(server.port(), 4096);
  client.send_request("GET", "/slow");
  const auto exchange = slow.wait();
  write(exchange, std::string(size_t{8} << 20, 'x'));  // more than any socket's buffers hold
  EXPECT_TRUE(slow.is_gone.wait());
}

TEST(HttpServer, WhoSendsOnAndOnBehindARequestIsCutOff) {
  Held held;
  const HttpServer server(quick_options(), held.handler());
  Client client(server.port());
  client.send_request("GET", "/");
  const auto exchange = held.wait();
  while (client.send(std::string(100'000, 'x'))) {
  }
  EXPECT_TRUE(held.is_gone.wait());
}

TEST(HttpServer, HundredsOfStreamsAreOpenAtOnce) {
  std::mutex mutex;
  std::vector<std::shared_ptr<HttpExchange>> exchanges;
  HttpServerOptions options = quick_options();
  const HttpServer server(options, [&](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->open_stream({});
    exchange->write("data: 1\n\n");
    const std::lock_guard lock(mutex);
    exchanges.push_back(exchange);
  });
  std::vector<std::unique_ptr<Client>> clients;
  clients.reserve(450);
  for (int i = 0; i < 450; ++i) {  // of each side: descriptors are limited to 1,024 in many a shell
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send_request("GET", "/");
  }
  for (const auto& client : clients)
    EXPECT_THAT(client->read_until("data: 1\n\n"), HasSubstr("data: 1"));
  EXPECT_EQ(server.open_exchanges(), clients.size());
  const std::lock_guard lock(mutex);
  for (const auto& exchange : exchanges)
    finish(exchange);
  for (const auto& client : clients)
    EXPECT_THAT(client->read_until("0\r\n\r\n"), HasSubstr("0\r\n\r\n"));
}

// --- the end --------------------------------------------------------------------------------------------------------

TEST(HttpServer, StoppingLetsAnswersEndAndTellsNewcomers) {
  Held held;
  HttpServer server(quick_options(), [&](const std::shared_ptr<HttpExchange>& exchange) {
    exchange->request().path == "/held" ? held.handler()(exchange) : echo(exchange);
  });
  Client idle(server.port());
  idle.send_request("GET", "/");
  EXPECT_EQ(idle.read_response().status, 200);
  Client client(server.port());
  client.send_request("GET", "/held");
  const auto exchange = held.wait();
  std::jthread stopper([&] { server.stop(std::chrono::minutes(1)); });
  EXPECT_TRUE(idle.is_ended());
  EXPECT_EQ(ask(server.port(), "GET", "/new").header("Connection"), "close");
  write(exchange, "data: last\n\n");
  finish(exchange);
  EXPECT_EQ(client.read_response().body, "data: last\n\n");
  stopper.join();
  EXPECT_FALSE(Client(server.port()).is_connected());
}

TEST(HttpServer, StoppingCutsOffWhatDoesNotEnd) {
  for (const bool is_hurried : {false, true}) {
    Held held;
    HttpServer server(quick_options(), held.handler());
    Client client(server.port());
    client.send_request("GET", "/");
    const auto exchange = held.wait();
    std::jthread stopper([&] { server.stop(is_hurried ? milliseconds(60'000) : milliseconds(0)); });
    if (is_hurried) server.hurry();
    EXPECT_TRUE(client.is_ended());
    EXPECT_TRUE(held.is_gone.wait());
  }
}

TEST(HttpServer, ObserversHearOfEveryEnd) {
  std::atomic<int> complete{0};
  std::atomic<int> cut{0};
  Held held;
  {
    const HttpServer server(
        quick_options(),
        [&](const std::shared_ptr<HttpExchange>& exchange) {
          exchange->request().path == "/held" ? held.handler()(exchange) : echo(exchange);
        },
        [&](const HttpRequest& /*request*/, const HttpOutcome& outcome) { ++(outcome.is_complete ? complete : cut); });
    (void)ask(server.port(), "POST", "/", "body");
    Client client(server.port());
    client.send_request("GET", "/held");
    (void)held.wait();
    client.close();
    EXPECT_TRUE(held.is_gone.wait());
  }
  EXPECT_EQ(complete, 1);
  EXPECT_EQ(cut, 1);
}

}  // namespace
}  // namespace tidepool
