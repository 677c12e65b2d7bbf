#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "server/api_server.h"
#include "server/test_client.h"
#include "session/engine_service.h"
#include "session/service_test_support.h"

/// A server on the real engine with recorded outputs, for tests of the dialects.
namespace tidepool::server_testing {

/// "words" thinks and answers; "calls" makes two calls with nested arguments; "custom" calls a tool that takes text.
inline constexpr std::string_view kScript =
    R"script(
{"match": "words", "text": "First I think.\n</think>\n\nThen I \"answer\".\nTwice."}
{"match": "calls", "text": "Hm.</think>Two calls.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get\">\n<)script"
    R"script(｜DSML｜ parameter name=\"city\" string=\"true\">Rome \"x\"\n</｜DSML｜ parameter>\n<｜DSML｜)script"
    R"script( parameter name=\"n\" string=\"false\">{\"a\": [1, {\"b\": null}]}</｜DSML｜ parameter>\n)script"
    R"script(</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"box::put\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"}
{"match": "custom", "text": "</think><｜DSML｜ calls>\n<｜DSML｜ invoke name=\"patch\">\n<｜DSML｜ paramet)script"
    R"script(er name=\"input\" string=\"true\">a \"b\"\nc</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜D)script"
    R"script(SML｜ calls>"}
{"match": "plain", "text": "no thinking at all"}
{"match": "endless", "text": "again ", "repeat": true}
{"text": "raw text with STOP in it"}
)script";

inline constexpr std::string_view kChatTools =
    R"("tools":[{"type":"function","function":{"name":"get","parameters":{"type":"object"}}},)"
    R"({"type":"function","function":{"name":"box::put"}}])";

/// One server for all tests of a suite.
class DialectsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    checkpoint = std::make_unique<service_testing::RoomyCheckpoint>();
    std::ofstream(checkpoint->path() / "script.jsonl") << kScript;
    EngineServiceOptions options;
    options.kv.emplace();
    options.kv->ram_bytes = size_t{64} << 20;
    options.kv->snapshot_ram_bytes = size_t{16} << 20;
    options.script = checkpoint->path() / "script.jsonl";
    options.repetition_limit = 600;
    service = make_engine_service(service_testing::load_roomy_model(*checkpoint), options);
    ApiServerOptions api;
    api.http.port = 0;
    api.model_names = {"tiny"};
    api.version = "1";
    server = std::make_unique<ApiServer>(std::move(api));
    server->set_service(*service);
  }
  static void TearDownTestSuite() {
    server.reset();
    service.reset();
    checkpoint.reset();
  }

  /// Posts a body: `{"model":"tiny",` and the rest.
  static Response post(const std::string& path, const std::string& rest) {
    Response response = ask(server->http().port(), "POST", path, R"({"model":"tiny","temperature":0,)" + rest);
    EXPECT_TRUE(response.is_complete);
    return response;
  }
  static std::string user(const std::string& text) {
    return R"("messages":[{"role":"user","content":")" + text + R"("}])";
  }

  inline static std::unique_ptr<service_testing::RoomyCheckpoint> checkpoint;
  inline static std::unique_ptr<Service> service;
  inline static std::unique_ptr<ApiServer> server;
};

/// The value at a path of keys and indices, which must be there.
template <typename... Steps>
const Json& at(const Json& value, Steps... steps) {
  const Json* here = &value;
  const auto step_to = [&](const auto& step) {
    if constexpr (std::is_convertible_v<decltype(step), std::string_view>) {
      const Json* next = here->find(step);
      if (next == nullptr) ADD_FAILURE() << "no member " << step << " in " << write_json(*here);
      static const Json none;
      here = next == nullptr ? &none : next;
    } else {
      here = &here->as_array().at(static_cast<size_t>(step));
    }
  };
  (step_to(steps), ...);
  return *here;
}

inline int64_t number(const Json& value) {
  return value.try_int64().value_or(-1);
}

}  // namespace tidepool::server_testing
