// Clients as a server meets them: those who leave, who dawdle, who send garbage, and among them those who want answers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "server/api_server.h"
#include "server/test_client.h"
#include "session/engine_service.h"
#include "session/service_test_support.h"

namespace tidepool {
namespace {

using server_testing::ask;
using server_testing::Client;

class ChaosTest : public testing::Test {
 protected:
  ChaosTest() {
    std::ofstream(checkpoint_.path() / "script.jsonl")
        << R"({"match": "endless", "text": "</think>on ", "repeat": true})"
        << "\n"
        << R"({"text": "think</think>answer"})"
        << "\n";
    EngineServiceOptions options;
    options.kv.emplace();
    options.kv->ram_bytes = size_t{64} << 20;
    options.script = checkpoint_.path() / "script.jsonl";
    service_ = make_engine_service(service_testing::load_roomy_model(checkpoint_), options);
    ApiServerOptions api;
    api.http.port = 0;
    api.http.tick = std::chrono::milliseconds(5);
    api.http.head_timeout = api.http.body_timeout = std::chrono::milliseconds(50);
    api.http.keep_alive_interval = std::chrono::milliseconds(20);
    api.http.stream_backlog_bytes_max = 64 << 10;
    api.model_names = {"tiny"};
    server_ = std::make_unique<ApiServer>(std::move(api));
    server_->set_service(*service_);
  }
  ChaosTest(const ChaosTest&) = delete;
  ChaosTest& operator=(const ChaosTest&) = delete;
  ~ChaosTest() override { server_.reset(); }

  [[nodiscard]] uint16_t port() const { return server_->http().port(); }
  size_t draw(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random_); }

  std::string body(bool is_endless, bool is_stream) {
    const std::string text = is_endless ? "endless" : "short";
    const std::string end = std::string(",\"max_tokens\":2000,\"stream\":") + (is_stream ? "true}" : "false}");
    return R"({"model":"tiny","messages":[{"role":"user","content":")" + text + R"("}])" + end;
  }
  std::string path() { return draw(2) == 0 ? "/v1/chat/completions" : "/v1/messages"; }
  std::string garbage() {
    std::string text;
    for (size_t i = draw(300); i > 0; --i)
      text += static_cast<char>(draw(256));
    return text + "\r\n\r\n";
  }

  /// One client does one thing.
  void misbehave(Client& client) {
    switch (draw(7)) {
      case 0: client.send(garbage()); return;
      case 1: client.send("POST /v1/chat/completions HTTP/1.1\r\nContent-Len"); return;
      case 2: client.send_request("POST", path(), body(false, true).substr(0, draw(60))); return;
      case 3: client.send_request("POST", path(), body(true, draw(2) == 0)); return;
      case 4:
        client.send_request("POST", path(), body(true, true));
        (void)client.read_until("on");
        return;
      case 5: client.send("POST /x HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + std::string(draw(1000), 'x')); return;
      case 6: client.send("GET /health HTTP/1.1\r\n\r\n" + garbage()); return;
      default: return;
    }
  }

  service_testing::RoomyCheckpoint checkpoint_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<ApiServer> server_;
  std::mt19937_64 random_{static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed())};
};

TEST_F(ChaosTest, RandomClientsLeaveNothingBehindAndOthersAreServed) {
  std::vector<std::unique_ptr<Client>> clients;
  clients.reserve(150);
  for (int i = 0; i < 150; ++i) {
    clients.push_back(std::make_unique<Client>(port(), 4096));
    misbehave(*clients.back());
    if (clients.size() > 20) {
      const size_t leaver = draw(clients.size());
      draw(2) == 0 ? clients[leaver]->reset() : clients[leaver]->close();
      clients.erase(clients.begin() + static_cast<ptrdiff_t>(leaver));
    }
    if (i % 25 == 0) {
      EXPECT_EQ(ask(port(), "GET", "/health").status, 200);
    }
  }
  clients.clear();
  EXPECT_THAT(ask(port(), "POST", "/v1/chat/completions", body(false, false)).body, testing::HasSubstr("answer"));
  while (service_->status().running + service_->status().waiting > 0)
    std::this_thread::yield();
  while (server_->http().open_connections() > 0)
    std::this_thread::yield();
  EXPECT_EQ(server_->http().open_exchanges(), 0U);
}

}  // namespace
}  // namespace tidepool
