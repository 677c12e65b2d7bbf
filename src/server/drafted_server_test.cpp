// A real engine that drafts, behind a real connection.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/api_server.h"
#include "server/test_client.h"
#include "session/engine_service.h"
#include "session/service_test_support.h"

namespace tidepool {
namespace {

using server_testing::ask;

class DraftedServerTest : public testing::Test {
 protected:
  DraftedServerTest() {
    EngineServiceOptions options;
    options.kv.emplace();
    options.kv->ram_bytes = size_t{64} << 20;
    options.scheduler.drafts = {.mode = DraftOptions::Mode::kFixed, .length = 3};
    service_ = make_engine_service(service_testing::load_roomy_model(checkpoint_, true), options);
    ApiServerOptions api;
    api.http.port = 0;
    api.model_names = {"tiny"};
    server_ = std::make_unique<ApiServer>(std::move(api));
    server_->set_service(*service_);
  }
  DraftedServerTest(const DraftedServerTest&) = delete;
  DraftedServerTest& operator=(const DraftedServerTest&) = delete;
  ~DraftedServerTest() override { server_.reset(); }

  [[nodiscard]] uint16_t port() const { return server_->http().port(); }

  /// Values of all series of a metric, in the order in which they are written.
  [[nodiscard]] std::vector<int64_t> series(const std::string& name) const {
    const std::string text = ask(port(), "GET", "/metrics").body;
    std::vector<int64_t> values;
    for (size_t at = text.find("\n" + name + "{"); at != std::string::npos; at = text.find("\n" + name + "{", at + 1))
      values.push_back(std::stoll(text.substr(text.find("} ", at) + 2)));
    return values;
  }

 private:
  service_testing::RoomyCheckpoint checkpoint_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<ApiServer> server_;
};

TEST_F(DraftedServerTest, UsageAndMetricsAgreeOnDrafts) {
  int64_t accepted = 0;
  int64_t rejected = 0;
  for (const std::string prompt : {"the quick", "hello hello hello", "x"}) {
    const std::string body = R"({"model":"tiny","temperature":0,"ignore_eos":true,"max_tokens":40,"prompt":")";
    const Json answer = ask(port(), "POST", "/v1/completions", body + prompt + "\"}").json();
    const Json& details = *answer.find("usage")->find("completion_tokens_details");
    accepted += *details.find("accepted_prediction_tokens")->try_int64();
    rejected += *details.find("rejected_prediction_tokens")->try_int64();
  }
  ASSERT_GT(accepted, 0);
  ASSERT_GT(rejected, 0);
  EXPECT_THAT(series("vllm:spec_decode_num_accepted_tokens_total"), testing::ElementsAre(accepted));
  EXPECT_THAT(series("vllm:spec_decode_num_draft_tokens_total"), testing::ElementsAre(accepted + rejected));

  const std::vector<int64_t> accepted_by_place = series("vllm:spec_decode_num_accepted_tokens_per_pos_total");
  const std::vector<int64_t> drafted_by_place = series("tidepool:spec_decode_num_draft_tokens_per_pos_total");
  ASSERT_EQ(accepted_by_place.size(), 3U);
  ASSERT_EQ(drafted_by_place.size(), 3U);
  int64_t accepted_sum = 0;
  int64_t drafted_sum = 0;
  for (size_t i = 0; i < 3; ++i) {
    accepted_sum += accepted_by_place[i];
    drafted_sum += drafted_by_place[i];
    EXPECT_LE(accepted_by_place[i], drafted_by_place[i]) << i;
  }
  // A draft is taken only behind all before it.
  EXPECT_GE(accepted_by_place[0], accepted_by_place[1]);
  EXPECT_GE(accepted_by_place[1], accepted_by_place[2]);
  EXPECT_EQ(accepted_sum, accepted);
  EXPECT_EQ(drafted_sum, accepted + rejected);
  EXPECT_THAT(series("vllm:spec_decode_num_drafts_total"), testing::ElementsAre(drafted_by_place[0]));
}

}  // namespace
}  // namespace tidepool
