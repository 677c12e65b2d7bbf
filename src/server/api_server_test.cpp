#include "server/api_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "server/fake_service.h"
#include "server/test_client.h"

namespace tidepool {
namespace {

using server_testing::ask;
using server_testing::Client;
using server_testing::FakeService;
using server_testing::Response;
using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;
using Kind = CompletionEvent::Kind;

struct RequestForm {
  std::string name;
  std::string path;
  std::string body;  ///< without its last brace
};

const std::vector<RequestForm>& request_forms() {
  static const std::vector<RequestForm> all = {
      {"chat", "/v1/chat/completions", R"({"model":"tiny","messages":[{"role":"user","content":"hi"}])"},
      {"completions", "/v1/completions", R"({"model":"tiny","prompt":"hi","max_tokens":100)"},
      {"responses", "/v1/responses", R"({"model":"tiny","input":"hi")"},
      {"messages", "/v1/messages", R"({"model":"tiny","max_tokens":100,"messages":[{"role":"user","content":"hi"}])"},
  };
  return all;
}

class ApiServerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    LoadOptions options;
    options.folder = std::string(TIDEPOOL_GOLDEN_DIR) + "/ckpt";
    options.threads = 1;
    shared_model = LoadedModel::load(options);
  }
  static void TearDownTestSuite() { shared_model.reset(); }

  static ApiServerOptions options() {
    ApiServerOptions result;
    result.http.port = 0;
    result.http.tick = milliseconds(5);
    result.model_names = {"tiny", "alias"};
    result.version = "1.2.3";
    return result;
  }
  void serve(ApiServerOptions given) {
    server = std::make_unique<ApiServer>(std::move(given));
    server->set_service(service);
  }
  [[nodiscard]] uint16_t port() const { return server->http().port(); }
  [[nodiscard]] double metric(const std::string& name) const {
    const std::string text = ask(port(), "GET", "/metrics").body;
    const size_t at = text.find("\n" + name + "{");
    EXPECT_NE(at, std::string::npos) << name;
    return std::stod(text.substr(text.find("} ", at) + 2));
  }

  static std::shared_ptr<const LoadedModel> shared_model;
  FakeService service{shared_model};
  std::unique_ptr<ApiServer> server;
};

std::shared_ptr<const LoadedModel> ApiServerTest::shared_model;

// --- routes ---------------------------------------------------------------------------------------------------------

TEST_F(ApiServerTest, SmallRoutesAnswer) {
  serve(options());
  EXPECT_EQ(ask(port(), "GET", "/health").status, 200);
  EXPECT_EQ(ask(port(), "GET", "/health").body, "");
  EXPECT_EQ(ask(port(), "GET", "/ping").status, 200);
  EXPECT_EQ(ask(port(), "GET", "/version").body, R"({"version":"1.2.3"})");
  EXPECT_EQ(ask(port(), "GET", "/load").body, R"({"server_load":0})");
  EXPECT_EQ(ask(port(), "HEAD", "/").status, 200);
  const Response page = ask(port(), "GET", "/");
  EXPECT_THAT(page.header("Content-Type"), HasSubstr("text/html"));
  EXPECT_THAT(page.header("Content-Security-Policy"), HasSubstr("default-src 'none'"));
}

TEST_F(ApiServerTest, ModelsAreListedForClientsOfBothApis) {
  serve(options());
  for (const std::string path : {"/v1/models", "/models", "/beta/models"}) {
    const Json list = ask(port(), "GET", path).json();
    EXPECT_EQ(list.find("object")->as_string(), "list");
    EXPECT_EQ(list.find("first_id")->as_string(), "tiny");
    const Json& model = list.find("data")->as_array()[1];
    EXPECT_EQ(model.find("id")->as_string(), "alias");
    EXPECT_EQ(model.find("max_model_len")->try_int64(), 1024);
    EXPECT_EQ(model.find("type")->as_string(), "model");
  }
  EXPECT_EQ(ask(port(), "GET", "/v1/models/tiny").json().find("id")->as_string(), "tiny");
  const Response unknown = ask(port(), "GET", "/v1/models/other");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_THAT(unknown.body, HasSubstr("model_not_found"));
  EXPECT_THAT(ask(port(), "GET", "/v1/models/other", "", {{"anthropic-version", "2023-06-01"}}).body,
              HasSubstr("not_found_error"));
}

TEST_F(ApiServerTest, UnknownPathsAndMethodsAreRefusedInTheDialectsWords) {
  serve(options());
  EXPECT_EQ(ask(port(), "GET", "/v1/nothing").status, 404);
  EXPECT_EQ(ask(port(), "GET", "/v1/chat/completions").status, 405);
  EXPECT_EQ(ask(port(), "GET", "/v1/responses/resp_1").status, 404);
  EXPECT_EQ(ask(port(), "DELETE", "/v1/responses/resp_1").status, 404);
  EXPECT_THAT(ask(port(), "GET", "/v1/messages").body, HasSubstr(R"("type":"error")"));
  EXPECT_EQ(ask(port(), "GET", "/v1/messages", "", {{"x-request-id", "r1"}}).header("request-id"), "r1");
}

TEST_F(ApiServerTest, PathsWithAndWithoutVersion) {
  serve(options());
  for (const std::string path : {"/v1/chat/completions", "/chat/completions", "/beta/chat/completions",
                                 "/beta/v1/chat/completions", "/v1/chat/completions?beta=true", "/v1/responses",
                                 "/responses", "/v1/messages", "/anthropic/v1/messages", "/completions"}) {
    const Response response = ask(port(), "POST", path, "{}");
    EXPECT_EQ(response.status, 400) << path;
    EXPECT_THAT(response.body, HasSubstr("model")) << path;
  }
}

// --- who may ask ----------------------------------------------------------------------------------------------------

TEST_F(ApiServerTest, AKeyIsAskedForWhereTextIsAndNotForHealth) {
  ApiServerOptions keyed = options();
  keyed.api_key = "secret";
  serve(keyed);
  for (const std::string path : {"/health", "/ping", "/metrics", "/"})
    EXPECT_EQ(ask(port(), "GET", path).status, 200) << path;
  EXPECT_EQ(ask(port(), "GET", "/v1/models").status, 401);
  for (const std::string wrong : {"Bearer secre", "Bearer secrets", "Bearer Secret", "secret", "Bearer ", ""})
    EXPECT_EQ(ask(port(), "GET", "/v1/models", "", {{"Authorization", wrong}}).status, 401) << wrong;
  EXPECT_EQ(ask(port(), "GET", "/v1/models", "", {{"Authorization", "bearer secret"}}).status, 200);
  EXPECT_EQ(ask(port(), "GET", "/v1/models", "", {{"x-api-key", "secret"}}).status, 200);
  EXPECT_THAT(ask(port(), "POST", "/v1/chat/completions", "{}").body, HasSubstr("invalid_api_key"));
  EXPECT_THAT(ask(port(), "POST", "/v1/messages", "{}").body, HasSubstr("authentication_error"));
}

TEST_F(ApiServerTest, PagesFromElsewhereMayNotAskUnlessAllowed) {
  serve(options());
  const std::string own = "http://127.0.0.1";
  EXPECT_EQ(ask(port(), "GET", "/v1/models", "", {{"Origin", own}}).status, 200);
  EXPECT_EQ(ask(port(), "GET", "/v1/models", "", {{"Origin", "null"}}).status, 403);
  const Response foreign = ask(port(), "GET", "/v1/models", "", {{"Origin", "https://example.com"}});
  EXPECT_EQ(foreign.status, 403);
  EXPECT_EQ(foreign.header("Access-Control-Allow-Origin"), "");
  ApiServerOptions open = options();
  open.allowed_origins = {"https://example.com"};
  serve(open);
  const Response allowed = ask(port(), "OPTIONS", "/v1/chat/completions", "", {{"Origin", "https://example.com"}});
  EXPECT_EQ(allowed.status, 204);
  EXPECT_EQ(allowed.header("Access-Control-Allow-Origin"), "https://example.com");
  EXPECT_THAT(allowed.header("Access-Control-Allow-Headers"), HasSubstr("authorization"));
  EXPECT_EQ(ask(port(), "GET", "/v1/models", "", {{"Origin", "https://www.example.com"}}).status, 403);
}

/// A page at evil.example whose name was made to point here says so in Host and in Origin alike.
TEST_F(ApiServerTest, NamesThatAreNotThisMachinesAreRefusedWhereNothingElseProtects) {
  ApiServerOptions local = options();
  local.allowed_origins = {"https://www.example.com"};
  serve(local);
  const auto status = [this](const std::string& host, const std::string& path = "/v1/models") {
    return ask(port(), "GET", path, "", {{"Host", host}}).status;
  };
  for (const std::string own : {"localhost", "LocalHost:9000", "localhost.", "127.0.0.1:8000", "[::1]:8000", "[::1]",
                                "www.example.com", "www.example.com:443"})
    EXPECT_EQ(status(own), 200) << own;
  for (const std::string foreign : {"evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.nip.io",
                                    "example.com", "192.168.0.7:8000", "[::2]:8000", "[", "[]", ":8000", ".", ""})
    EXPECT_EQ(status(foreign), 403) << foreign;
  EXPECT_EQ(status("evil.example", "/health"), 200);
  EXPECT_EQ(status("evil.example", "/metrics"), 200);
  const Response rebound =
      ask(port(), "POST", "/v1/messages", "{}", {{"Host", "example.com:8000"}, {"Origin", "http://example.com:8000"}});
  EXPECT_EQ(rebound.status, 403);
  EXPECT_THAT(rebound.body, HasSubstr("not as \\\"example.com\\\""));
  EXPECT_THAT(rebound.body, HasSubstr("--allowed-origins"));
}

TEST_F(ApiServerTest, WithAKeyOrOnANetworkAnyNameMayBeUsed) {
  ApiServerOptions keyed = options();
  keyed.api_key = "secret";
  serve(keyed);
  EXPECT_EQ(ask(port(), "GET", "/v1/models", "", {{"Host", "box.example"}, {"x-api-key", "secret"}}).status, 200);
  ApiServerOptions everywhere = options();
  everywhere.http.host = "0.0.0.0";
  serve(everywhere);
  EXPECT_EQ(ask(port(), "GET", "/v1/models", "", {{"Host", "box.example"}}).status, 200);
}

TEST_F(ApiServerTest, ThoseWithoutTheKeyAreRefusedBeforeTheirBody) {
  ApiServerOptions keyed = options();
  keyed.api_key = "secret";
  serve(keyed);
  Client client(port());
  client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
  const Response refused = client.read_response();
  EXPECT_EQ(refused.status, 401);
  EXPECT_THAT(refused.body, HasSubstr("invalid_api_key"));
}

TEST_F(ApiServerTest, WhatNeedsNoKeyTakesNoLargeBody) {
  serve(options());
  const std::string large(100'000, 'a');
  for (const auto& [method, path] : {std::pair("OPTIONS", "/v1/models"), std::pair("GET", "/"),
                                     std::pair("POST", "/ping"), std::pair("GET", "/metrics")}) {
    EXPECT_EQ(ask(port(), method, path, large).status, 413) << path;
  }
  EXPECT_EQ(ask(port(), "GET", "/metrics", "", {{"Transfer-Encoding", "chunked"}}).status, 413);
  EXPECT_EQ(ask(port(), "POST", "/ping", "{}").status, 200);
}

/// Salts and users are two name spaces, and the same in every dialect.
TEST_F(ApiServerTest, EveryDialectKeepsCachesApart) {
  serve(options());
  service.at_submit = [this](size_t request) {
    service.start(request);
    service.finish(request);
    service.end(request);
  };
  size_t count = 0;
  const auto salt = [&](const RequestForm& dialect, const std::string& fields) {
    EXPECT_EQ(ask(port(), "POST", dialect.path, dialect.body + fields + "}").status, 200) << dialect.name << fields;
    return service.request(count++).request.cache_salt;
  };
  for (const RequestForm& dialect : request_forms()) {
    const bool is_messages = dialect.name == "messages";
    const auto user = [&](const std::string& name) {
      return is_messages ? R"(,"metadata":{"user_id":")" + name + R"("})" : R"(,"user_id":")" + name + "\"";
    };
    EXPECT_EQ(salt(dialect, ""), "") << dialect.name;
    EXPECT_EQ(salt(dialect, R"(,"cache_salt":"x")"), "salt:x") << dialect.name;
    EXPECT_EQ(salt(dialect, user("x")), "user:x") << dialect.name;
    EXPECT_EQ(salt(dialect, R"(,"cache_salt":"y")" + user("x")), "salt:y") << dialect.name;
  }
  const RequestForm& messages = request_forms()[3];
  EXPECT_EQ(salt(messages, R"(,"metadata":{"user_id":"user_1_account_2_session_3"})"), "user:user_1_account_2");
  EXPECT_EQ(salt(messages, R"(,"metadata":{"user_id":"{\"device_id\":\"d\",\"session_id\":\"s\"}"})"),
            R"(user:{"device_id": "d"})");
  EXPECT_EQ(salt(messages, R"(,"metadata":{"user_id":"{x"})"), "user:{x");
}

TEST_F(ApiServerTest, OtherModelsAreNotFoundButClaudesNamesAre) {
  serve(options());
  const Response unknown =
      ask(port(), "POST", "/v1/chat/completions", R"({"model":"gpt","messages":[{"role":"user","content":"a"}]})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_THAT(unknown.body, HasSubstr(R"("param":"model","code":"model_not_found")"));
  EXPECT_EQ(ask(port(), "POST", "/v1/messages/count_tokens",
                R"({"model":"claude-x","messages":[{"role":"user","content":"a"}]})")
                .body,
            R"({"input_tokens":3})");
}

// --- when requests cannot be taken ----------------------------------------------------------------------------------

TEST_F(ApiServerTest, WhileLoadingHealthSaysHowFarAndRequestsAreToComeLater) {
  server = std::make_unique<ApiServer>(options());
  server->set_progress("weights", 3, 10);
  const Response health = ask(port(), "GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.body, R"({"status":"loading","part":"weights","done":3,"total":10})");
  EXPECT_EQ(ask(port(), "GET", "/ping").status, 200);
  for (const RequestForm& dialect : request_forms()) {
    const Response response = ask(port(), "POST", dialect.path, dialect.body + "}");
    EXPECT_EQ(response.status, dialect.name == "messages" ? 529 : 503) << dialect.name;
    EXPECT_NE(response.header("Retry-After"), "") << dialect.name;
  }
  server->set_service(service);
  EXPECT_EQ(ask(port(), "GET", "/health").status, 200);
}

TEST_F(ApiServerTest, RefusalComesBeforeTheFirstByteOfAStream) {
  serve(options());
  const std::vector<std::pair<Busy, int>> cases = {
      {{Busy::Reason::kQueueFull, 7}, 429}, {{Busy::Reason::kNoMemory, 3}, 503}, {{Busy::Reason::kDraining, 1}, 503}};
  for (const auto& [busy, status] : cases) {
    service.busy = busy;
    for (const RequestForm& dialect : request_forms()) {
      for (const std::string stream : {"true", "false"}) {
        const Response response = ask(port(), "POST", dialect.path, dialect.body + ",\"stream\":" + stream + "}");
        EXPECT_EQ(response.status, status == 503 && dialect.name == "messages" ? 529 : status);
        EXPECT_EQ(response.header("Retry-After"), std::to_string(busy.retry_after_s));
        EXPECT_THAT(response.body, HasSubstr("\"error\""));
      }
    }
  }
}

TEST_F(ApiServerTest, NoMemoryForPicturesIsAReasonToComeBackOnEveryRoute) {
  serve(options());
  service.prepare_busy = Busy{Busy::Reason::kNoMemory, 5};
  std::vector<std::pair<std::string, std::string>> requests;
  for (const RequestForm& dialect : request_forms())
    requests.emplace_back(dialect.path, dialect.body + "}");
  requests.emplace_back("/v1/messages/count_tokens", request_forms()[3].body + "}");
  requests.emplace_back("/tokenize", request_forms()[0].body + "}");
  for (const auto& [path, body] : requests) {
    const Response response = ask(port(), "POST", path, body);
    EXPECT_EQ(response.status, path.starts_with("/v1/messages") ? 529 : 503) << path;
    EXPECT_EQ(response.header("Retry-After"), "5") << path;
    EXPECT_THAT(response.body, HasSubstr("no memory for images now")) << path;
  }
}

TEST_F(ApiServerTest, AContextThatIsTooLongIsTheClientsError) {
  serve(options());
  service.prepare_error = Error(ErrorCode::kResourceExhausted, "the prompt has 2000 tokens, the context holds 1024");
  const Response chat = ask(port(), "POST", request_forms()[0].path, request_forms()[0].body + "}");
  EXPECT_EQ(chat.status, 400);
  EXPECT_THAT(chat.body, HasSubstr("2000"));
  EXPECT_THAT(chat.body, HasSubstr("context_length_exceeded"));
  EXPECT_EQ(ask(port(), "POST", request_forms()[3].path, request_forms()[3].body + "}").status, 400);
}

TEST_F(ApiServerTest, ErrorsOfTheServersOwnTellNothingOfFiles) {
  serve(options());
  service.prepare_error = Error(ErrorCode::kIo, "/secret/path: broken");
  const Response response = ask(port(), "POST", request_forms()[0].path, request_forms()[0].body + "}");
  EXPECT_EQ(response.status, 500);
  EXPECT_THAT(response.body, Not(HasSubstr("secret")));
}

TEST_F(ApiServerTest, ManyPromptsAreTakenTogetherOrNotAtAll) {
  serve(options());
  service.at_submit = [this](size_t /*request*/) { service.busy = Busy{Busy::Reason::kQueueFull, 1}; };
  const Response response = ask(port(), "POST", "/v1/completions", R"({"model":"tiny","prompt":["a","b"]})");
  EXPECT_EQ(response.status, 429);
  service.wait_for_drop(0);
}

TEST_F(ApiServerTest, DeadlinesTravelWithTheRequest) {
  ApiServerOptions limited = options();
  limited.request_timeout = milliseconds(60'000);
  serve(limited);
  service.at_submit = [this](size_t request) {
    service.start(request);
    service.end(request, Error(ErrorCode::kCancelled, "the deadline has passed"));
  };
  EXPECT_EQ(ask(port(), "POST", request_forms()[0].path, request_forms()[0].body + "}").status, 504);
  EXPECT_TRUE(service.request(0).request.deadline.has_value());
}

// --- the way of an answer -------------------------------------------------------------------------------------------

TEST_F(ApiServerTest, PiecesArriveWhileTheAnswerIsWritten) {
  serve(options());
  Client client(port());
  client.send_request("POST", request_forms()[0].path, request_forms()[0].body + ",\"stream\":true}");
  const size_t request = service.wait_for_requests(1);
  service.start(request);
  EXPECT_THAT(client.read_until("\n\n"), HasSubstr("\"role\":\"assistant\""));
  service.say(request, Kind::kContent, "one");
  EXPECT_THAT(client.read_until("\n\n"), HasSubstr("\"content\":\"one\""));
  service.finish(request);
  service.end(request);
  EXPECT_THAT(client.read_until("[DONE]\n\n"), HasSubstr("\"finish_reason\":\"stop\""));
  service.wait_for_drop(request);
}

TEST_F(ApiServerTest, AFailureUnderWayEndsTheStreamWithAnError) {
  serve(options());
  const std::vector<std::string> marks = {"data: {\"error\":", "data: {\"error\":", "response.failed", "event: error"};
  service.at_submit = [this](size_t request) {
    service.start(request);
    service.say(request, Kind::kContent, "so far");
    service.end(request, Error(ErrorCode::kNumeric, "no usable logits"));
  };
  for (size_t i = 0; i < request_forms().size(); ++i) {
    const Response response =
        ask(port(), "POST", request_forms()[i].path, request_forms()[i].body + ",\"stream\":true}");
    EXPECT_EQ(response.status, 200);
    EXPECT_THAT(response.body, HasSubstr("so far"));
    EXPECT_THAT(response.body, HasSubstr(marks[i])) << request_forms()[i].name;
    EXPECT_THAT(response.body, Not(HasSubstr("[DONE]")));
    const Response whole = ask(port(), "POST", request_forms()[i].path, request_forms()[i].body + "}");
    EXPECT_EQ(whole.status, 500) << request_forms()[i].name;
  }
}

TEST_F(ApiServerTest, AClientThatLeavesStopsItsRequestInEveryDialectAndState) {
  serve(options());
  size_t count = 0;
  for (const RequestForm& dialect : request_forms()) {
    for (const std::string stream : {"true", "false"}) {
      for (const int state : {0, 1, 2}) {  // queued, prompt being read, writing
        Client client(port());
        client.send_request("POST", dialect.path, dialect.body + ",\"stream\":" + stream + "}");
        const size_t request = service.wait_for_requests(++count);
        if (state > 0) service.start(request);
        if (state > 1) service.say(request, Kind::kContent, "word");
        client.close();
        service.wait_for_drop(request);
      }
    }
  }
  EXPECT_EQ(service.status().running, 0);
  EXPECT_EQ(metric("vllm:num_requests_running"), 0);
  EXPECT_THAT(ask(port(), "GET", "/metrics").body, HasSubstr("finished_reason=\"abort\"} " + std::to_string(count)));
}

/// The body is read on another thread than the one that hears of the client's going.
TEST_F(ApiServerTest, AClientMayLeaveWhileItsLargeBodyIsBeingRead) {
  serve(options());
  std::string body = R"({"model":"other","list":[0)";
  for (int i = 0; i < 2'000'000; ++i)
    body += ",1";
  body += "]}";
  for (int i = 0; i < 6; ++i) {
    Client client(port());
    ASSERT_TRUE(client.send_request("POST", "/v1/completions", body));
    while (server->http().open_exchanges() == 0)
      std::this_thread::yield();
    client.reset();
    while (server->http().open_exchanges() > 0)
      std::this_thread::yield();
  }
  EXPECT_EQ(ask(port(), "POST", "/v1/completions", body).status, 404);
}

TEST_F(ApiServerTest, AQuietPrefillIsKeptAlive) {
  ApiServerOptions quick = options();
  quick.http.keep_alive_interval = milliseconds(10);
  serve(quick);
  const std::vector<std::string> marks = {": keep-alive", ": keep-alive", ": keep-alive", "event: ping"};
  for (size_t i = 0; i < request_forms().size(); ++i) {
    Client client(port());
    client.send_request("POST", request_forms()[i].path, request_forms()[i].body + ",\"stream\":true}");
    const size_t request = service.wait_for_requests(i + 1);
    EXPECT_THAT(client.read_until(marks[i]), HasSubstr(marks[i])) << request_forms()[i].name;
    EXPECT_EQ(ask(port(), "GET", "/ping").status, 200) << "a long prompt is no reason to be killed";
    EXPECT_EQ(ask(port(), "GET", "/health").status, 200);
    service.start(request);
    service.say(request, Kind::kContent, "late");
    EXPECT_THAT(client.read_until("late"), HasSubstr("late"));
  }
}

/// Known fault 80: a chunk of five minutes is no reason to end the server, as the parts of it are seen; an engine whose
/// thread stands still is.
TEST_F(ApiServerTest, HealthTellsAStuckEngineFromABusyOne) {
  std::atomic<int64_t> seconds = 0;
  ApiServerOptions watched = options();
  watched.now = [&] { return std::chrono::steady_clock::time_point(std::chrono::seconds(seconds)); };
  serve(watched);
  const auto statuses = [this] {
    return std::pair(ask(port(), "GET", "/health").status, ask(port(), "GET", "/ping").status);
  };
  Client client(port());
  client.send_request("POST", request_forms()[0].path, request_forms()[0].body + "}");
  service.start(service.wait_for_requests(1));
  for (; seconds < 300; seconds += 60) {
    ++service.progress;
    EXPECT_EQ(statuses(), std::pair(200, 200)) << seconds;
  }
  EXPECT_EQ(statuses(), std::pair(200, 200)) << "not for two minutes yet";
  EXPECT_EQ(metric("tidepool:ready"), 1);
  seconds += 121;
  EXPECT_EQ(statuses(), std::pair(503, 503));
  EXPECT_EQ(ask(port(), "GET", "/health").body, R"({"status":"stuck"})");
  EXPECT_EQ(metric("tidepool:ready"), 0);
  ++service.progress;
  EXPECT_EQ(statuses(), std::pair(200, 200)) << "it goes on";
}

TEST_F(ApiServerTest, StoppingLetsStreamsEndAndRefusesNewRequests) {
  serve(options());
  Client client(port());
  client.send_request("POST", request_forms()[0].path, request_forms()[0].body + ",\"stream\":true}");
  const size_t request = service.wait_for_requests(1);
  service.start(request);
  (void)client.read_until("\n\n");
  std::jthread stopper([this] { server->stop(std::chrono::minutes(1)); });
  Response refused;
  do {
    refused = ask(port(), "GET", "/health");
  } while (refused.status != 503);
  EXPECT_EQ(refused.body, R"({"status":"draining"})");
  EXPECT_EQ(ask(port(), "POST", request_forms()[0].path, request_forms()[0].body + "}").status, 503);
  service.say(request, Kind::kContent, "last words");
  service.finish(request);
  service.end(request);
  EXPECT_THAT(client.read_until("[DONE]"), HasSubstr("last words"));
  stopper.join();
}

TEST_F(ApiServerTest, TheAccessLogHasNoTextButTheTrace) {
  std::mutex mutex;
  std::string log;
  ApiServerOptions logged = options();
  logged.access_log = [&](std::string_view line) {
    const std::lock_guard lock(mutex);
    log += line;
  };
  serve(logged);
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const Response refused = ask(port(), "POST", "/v1/chat/completions?key=1", R"({"model":"private words"})",
                               {{"traceparent", trace}, {"x-request-id", "id\"1"}});
  EXPECT_EQ(refused.header("traceparent"), trace);
  server.reset();
  const std::lock_guard lock(mutex);
  const Json line = parse_json(log);
  EXPECT_EQ(line.find("traceparent")->as_string(), trace);
  EXPECT_EQ(line.find("request_id")->as_string(), "id\"1");
  EXPECT_EQ(line.find("path")->as_string(), "/v1/chat/completions");
  EXPECT_EQ(line.find("status")->try_int64(), 404);
  EXPECT_THAT(log, Not(HasSubstr("private")));
}

TEST_F(ApiServerTest, TheAccessLogTellsOfCacheAndDrafts) {
  std::mutex mutex;
  std::vector<std::string> lines;
  ApiServerOptions logged = options();
  logged.access_log = [&](std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  };
  serve(logged);
  service.usage.drafts.note(4, 3);
  service.at_submit = [this](size_t request) {
    if (request == 2) return;  // that one is left by its client
    service.start(request, 10, 6);
    service.say(request, Kind::kContent, "private words");
    service.finish(request);
    service.end(request);
  };
  for (const std::string stream : {"true", "false"})
    EXPECT_EQ(
        ask(port(), "POST", request_forms()[0].path, request_forms()[0].body + ",\"stream\":" + stream + "}").status,
        200);
  Client client(port());
  client.send_request("POST", request_forms()[0].path, request_forms()[0].body + ",\"stream\":true}");
  service.start(service.wait_for_requests(3), 10, 6);
  ASSERT_THAT(client.read_until("\n\n"), HasSubstr("assistant"));  // who leaves before this is logged without figures
  client.close();
  service.wait_for_drop(2);
  server.reset();
  const std::lock_guard lock(mutex);
  ASSERT_EQ(lines.size(), 3U);
  for (const std::string& line : lines) {
    const Json parsed = parse_json(line);
    ASSERT_NE(parsed.find("generation"), nullptr) << line;
    const Json& generation = *parsed.find("generation");
    const bool is_complete = parsed.find("complete")->as_bool();
    EXPECT_EQ(is_complete, &line != &lines[2]);
    EXPECT_EQ(generation.find("completion_tokens")->try_int64(), is_complete ? 1 : 0);
    if (is_complete) {
      EXPECT_EQ(write_json(*generation.find("cache")),
                R"({"tier": "pages", "hit": 6, "replayed": 0, "end": "not_seen"})");
    }
    EXPECT_EQ(generation.find("drafts")->find("accepted")->try_int64(), is_complete ? 3 : 0);
    EXPECT_EQ(generation.find("drafts")->find("rejected")->try_int64(), is_complete ? 1 : 0);
    EXPECT_THAT(line, Not(HasSubstr("private")));
  }
}

TEST_F(ApiServerTest, UsageTellsOfDraftsInOpenAisDialects) {
  serve(options());
  service.usage.drafts.note(4, 3);
  service.at_submit = [this](size_t request) {
    service.start(request);
    service.finish(request);
    service.end(request);
  };
  for (size_t i = 0; i < 3; ++i) {
    const Json whole = ask(port(), "POST", request_forms()[i].path, request_forms()[i].body + "}").json();
    const Json* details = whole.find("usage")->find(i == 2 ? "output_tokens_details" : "completion_tokens_details");
    ASSERT_NE(details, nullptr) << request_forms()[i].name;
    EXPECT_EQ(details->find("accepted_prediction_tokens")->try_int64(), 3) << request_forms()[i].name;
    EXPECT_EQ(details->find("rejected_prediction_tokens")->try_int64(), 1) << request_forms()[i].name;
  }
}

TEST_F(ApiServerTest, MetricsTellOfDraftsByTheirPlace) {
  serve(options());
  EXPECT_EQ(metric("vllm:spec_decode_num_drafts_total"), 0);
  service.usage.drafts.note(3, 2);
  service.usage.drafts.note(2, 0);
  service.at_submit = [this](size_t request) {
    service.start(request);
    service.finish(request);
    service.end(request);
  };
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(ask(port(), "POST", request_forms()[0].path, request_forms()[0].body + "}").status, 200);
  EXPECT_EQ(metric("vllm:spec_decode_num_drafts_total"), 4);
  EXPECT_EQ(metric("vllm:spec_decode_num_draft_tokens_total"), 10);
  EXPECT_EQ(metric("vllm:spec_decode_num_accepted_tokens_total"), 4);
  const std::string text = ask(port(), "GET", "/metrics").body;
  const std::string labels = R"({model_name="tiny",engine="0",position=")";
  const auto series = [&](const std::string& name, int place, int value) {
    return "\n" + name + labels + std::to_string(place) + "\"} " + std::to_string(value) + "\n";
  };
  const std::vector<int> proposed = {4, 4, 2};
  const std::vector<int> accepted = {2, 2, 0};
  for (int place = 0; place < 3; ++place) {
    const auto at = static_cast<size_t>(place);
    EXPECT_THAT(text, HasSubstr(series("vllm:spec_decode_num_accepted_tokens_per_pos_total", place, accepted[at])));
    EXPECT_THAT(text, HasSubstr(series("tidepool:spec_decode_num_draft_tokens_per_pos_total", place, proposed[at])));
  }
  EXPECT_THAT(text, Not(HasSubstr("position=\"3\"")));
}

TEST_F(ApiServerTest, AFullContextEndsAsALimitDoes) {
  serve(options());
  service.at_submit = [this](size_t request) {
    service.start(request);
    service.say(request, Kind::kContent, "as far as it goes");
    service.finish(request, FinishReason::kContextFull);
    service.end(request);
  };
  const std::vector<std::string> marks = {R"("finish_reason":"length")", R"("finish_reason":"length")",
                                          R"("status":"incomplete")", R"("stop_reason":"max_tokens")"};
  for (size_t i = 0; i < request_forms().size(); ++i)
    EXPECT_THAT(ask(port(), "POST", request_forms()[i].path, request_forms()[i].body + "}").body, HasSubstr(marks[i]));
}

TEST_F(ApiServerTest, MetricsTellOfTheStore) {
  serve(options());
  EXPECT_THAT(ask(port(), "GET", "/metrics").body, Not(HasSubstr("tidepool:store_")));
  service.evicted_pages = 4;
  BlockStore::Stats store;
  store.blocks = 7;
  store.disk_bytes = 5000;
  store.dropped_writes = 2;
  store.bad_records = 1;
  store.last_error = "/secret/path: No space left on device";
  service.store = store;
  EXPECT_EQ(metric("tidepool:kv_evicted_blocks_total"), 4);
  EXPECT_EQ(metric("tidepool:store_bytes"), 5000);
  EXPECT_EQ(metric("tidepool:store_records"), 7);
  EXPECT_EQ(metric("tidepool:store_dropped_writes_total"), 2);
  EXPECT_EQ(metric("tidepool:store_bad_records_total"), 1);
  EXPECT_EQ(metric("tidepool:store_failing"), 1);
  EXPECT_THAT(ask(port(), "GET", "/metrics").body, Not(HasSubstr("secret")));
}

TEST_F(ApiServerTest, MetricsCountWhatWasAskedAndAnswered) {
  serve(options());
  service.at_submit = [this](size_t request) {
    service.start(request, 10, 6);
    service.say(request, Kind::kContent, "a");
    service.say(request, Kind::kContent, "b");
    service.finish(request);
    service.end(request);
  };
  (void)ask(port(), "POST", request_forms()[0].path, request_forms()[0].body + "}");
  EXPECT_EQ(metric("vllm:prompt_tokens_total"), 10);
  EXPECT_EQ(metric("vllm:prefix_cache_hits_total"), 6);
  EXPECT_EQ(metric("vllm:generation_tokens_total"), 2);
  const std::string text = ask(port(), "GET", "/metrics").body;
  EXPECT_THAT(text,
              HasSubstr("vllm:request_success_total{model_name=\"tiny\",engine=\"0\",finished_reason=\"stop\"} 1"));
  EXPECT_THAT(text, HasSubstr("http_requests_total{handler=\"/chat/completions\",method=\"POST\",status=\"200\"} 1"));
  EXPECT_THAT(text, HasSubstr("vllm:time_to_first_token_seconds_count{model_name=\"tiny\",engine=\"0\"} 1"));
  EXPECT_THAT(text, HasSubstr("le=\"+Inf\"} 1"));
  EXPECT_GT(metric("tidepool:kv_bytes_per_token"), 0);
  EXPECT_GT(metric("tidepool:memory_bytes"), 0);
}

}  // namespace
}  // namespace tidepool
