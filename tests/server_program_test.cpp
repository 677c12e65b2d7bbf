// `tidepool serve` from end to end: the program itself, the tiny model and recorded outputs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/temp_folder.h"
#include "cli_program.h"
#include "server/test_client.h"

namespace tidepool {
namespace {

using server_testing::ask;
using server_testing::Client;
using server_testing::Response;
using testing::HasSubstr;

/// The program, serving, until Ctrl-C.
class ServeTest : public testing::Test {
 protected:
  void serve(const std::vector<std::string>& more = {},
             const std::vector<std::pair<std::string, std::string>>& environment = {}) {
    std::ofstream(folder_ / "script.jsonl") << R"({"match": "endless", "text": "</think>on and ", "repeat": true})"
                                            << "\n"
                                            << R"({"text": "</think>a short answer"})";
    std::vector<std::string> arguments = {"serve",    golden("ckpt"), "--port", "0",         "--served-model-name",
                                          "tiny",     "--script",     script(), "--threads", "1",
                                          "--kv-ram", "64MiB"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    program_ = std::make_unique<TerminalProgram>(arguments, environment);
    banner_ = program_->read_until("}'");
    const std::string mark = "at http://127.0.0.1:";
    const size_t at = banner_.find(mark);
    ASSERT_NE(at, std::string::npos) << banner_;
    port_ = static_cast<uint16_t>(std::stoi(banner_.substr(at + mark.size())));
  }
  void interrupt() const { program_->send("\x03"); }
  [[nodiscard]] std::string script() const { return (folder_ / "script.jsonl").string(); }
  static std::string chat(const std::string& text, bool is_stream) {
    return R"({"model":"tiny","messages":[{"role":"user","content":")" + text + R"("}],"stream":)" +
           (is_stream ? "true}" : "false}");
  }

  TempFolder folder_;
  std::unique_ptr<TerminalProgram> program_;
  std::string banner_;
  uint16_t port_ = 0;
};

TEST_F(ServeTest, SaysHowToAskAndAnswersUntilCtrlC) {
  serve();
  EXPECT_THAT(banner_, HasSubstr("Tidepool serves tiny"));
  EXPECT_THAT(banner_, HasSubstr("curl http://127.0.0.1:" + std::to_string(port_) + "/v1/chat/completions"));
  EXPECT_EQ(ask(port_, "GET", "/health").status, 200);
  const Response response = ask(port_, "POST", "/v1/chat/completions", chat("hello", false));
  EXPECT_THAT(response.body, HasSubstr("a short answer"));
  EXPECT_EQ(response.header("x-tidepool-script"), "script.jsonl");
  interrupt();
  EXPECT_EQ(program_->wait(), 0);
}

TEST_F(ServeTest, TheFirstSignalWaitsForAnswersAndTheSecondDoesNot) {
  serve({"--shutdown-timeout", "600"});
  Client client(port_);
  client.send_request("POST", "/v1/chat/completions", chat("endless", true));
  EXPECT_THAT(client.read_until(" and"), HasSubstr(" and"));
  interrupt();
  EXPECT_THAT(program_->read_until("stopping"), HasSubstr("stopping"));
  EXPECT_THAT(client.read_until(" and"), HasSubstr(" and"));
  interrupt();
  EXPECT_TRUE(client.is_ended());
  EXPECT_EQ(program_->wait(), 0);
}

/// The most answers at once that a chunk of prompt leaves no room for: drafts make the forward call larger.
TEST_F(ServeTest, DraftsAsManyAnswersAsItMayWrite) {
  for (const std::string draft : {"auto", "3", "off"}) {
    serve({"--draft", draft, "--chunk", "16", "--max-num-seqs", "8"});
    const Response response = ask(port_, "POST", "/v1/chat/completions", chat("hello", false));
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_THAT(response.body, HasSubstr("a short answer")) << draft;
    interrupt();
    EXPECT_EQ(program_->wait(), 0);
  }
}

TEST_F(ServeTest, TheKeyComesFromTheEnvironment) {
  serve({}, {{"TIDEPOOL_API_KEY", "secret"}});
  EXPECT_THAT(banner_, HasSubstr("Bearer KEY"));
  EXPECT_THAT(banner_, testing::Not(HasSubstr("secret")));
  EXPECT_EQ(ask(port_, "GET", "/v1/models").status, 401);
  EXPECT_EQ(ask(port_, "GET", "/v1/models", "", {{"Authorization", "Bearer secret"}}).status, 200);
  interrupt();
  EXPECT_EQ(program_->wait(), 0);
}

TEST_F(ServeTest, ClientsThatLeaveInTheMiddleLeaveNothingBehind) {
  serve({"--max-num-seqs", "4"});
  const std::vector<std::pair<std::string, std::string>> requests = {
      {"/v1/chat/completions", R"("messages":[{"role":"user","content":"endless"}])"},
      {"/v1/completions", R"("prompt":"endless","max_tokens":900)"},
      {"/v1/responses", R"("input":"endless")"},
      {"/v1/messages", R"("max_tokens":900,"messages":[{"role":"user","content":"endless"}])"}};
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<Client>> clients;
    for (const auto& [path, fields] : requests) {
      for (const std::string stream : {"true", "false"}) {
        clients.push_back(std::make_unique<Client>(port_));
        clients.back()->send_request("POST", path, R"({"model":"tiny",)" + fields + ",\"stream\":" + stream + "}");
      }
    }
    EXPECT_THAT(clients.front()->read_until(" and"), HasSubstr(" and"));
    for (const auto& client : clients)
      round == 0 ? client->reset() : client->close();
  }
  std::string load;
  do {
    load = ask(port_, "GET", "/load").body;
  } while (load != R"({"server_load":0})");
  EXPECT_THAT(ask(port_, "POST", "/v1/chat/completions", chat("hello", false)).body, HasSubstr("a short answer"));
  interrupt();
  EXPECT_EQ(program_->wait(), 0);
}

TEST(Serve, RefusesWhatCannotBeServed) {
  const std::string model = golden("ckpt");
  const ProgramResult host = run_tidepool({"serve", model, "--host", "nowhere", "--port", "0"});
  EXPECT_EQ(host.status, 1);
  EXPECT_THAT(host.err, HasSubstr("--host"));
  const ProgramResult script = run_tidepool({"serve", model, "--port", "0", "--script", "/no/such/file"});
  EXPECT_EQ(script.status, 1);
  EXPECT_THAT(script.err, HasSubstr("/no/such/file"));
  const ProgramResult missing = run_tidepool({"serve", "/no/such/model", "--port", "0"});
  EXPECT_EQ(missing.status, 1);
  const ProgramResult memory = run_tidepool({"serve", model, "--port", "0", "--kv-ram", "1KiB"});
  EXPECT_EQ(memory.status, 1);
  EXPECT_THAT(memory.err, HasSubstr("--kv-ram"));
  const ProgramResult headless = run_tidepool({"serve", golden("ckpt_textonly"), "--port", "0", "--draft", "4"});
  EXPECT_EQ(headless.status, 1);
  EXPECT_THAT(headless.err, HasSubstr("no draft head"));
  const ProgramResult port = run_tidepool({"serve", model, "--port", "70000"});
  EXPECT_EQ(port.status, 2);
}

TEST(Serve, HelpIsForNewcomers) {
  const ProgramResult help = run_tidepool({"serve", "--help"});
  EXPECT_EQ(help.status, 0);
  for (const std::string words : {"curl", "--api-key", "--port", "Ctrl-C", "docs/api.md"})
    EXPECT_THAT(help.out, HasSubstr(words));
}

}  // namespace
}  // namespace tidepool
