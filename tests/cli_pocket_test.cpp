// The model that the repository brings, asked as a user asks it: what it answers comes from its weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli_program.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

std::string pocket() {
  return TIDEPOOL_SOURCE_DIR "/models/pocket";
}

std::string answer(const std::string& question, const std::vector<std::string>& options = {}) {
  std::vector<std::string> arguments = {"run",           pocket(),        "-p", question,
                                        "--no-thinking", "--temperature", "0",  "--json"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  const ProgramResult result = run_tidepool(arguments);
  EXPECT_EQ(result.status, 0) << result.err;
  return result.status == 0 ? std::string(at(result.json(), "content").as_string()) : "";
}

TEST(CliPocket, KnowsTheOptionsOfTidepool) {
  EXPECT_THAT(answer("How do I limit the cache on disk?"), HasSubstr("--kv-disk"));
  EXPECT_THAT(answer("How can I choose the folder of the cache?"), HasSubstr("--kv-dir"));
  EXPECT_THAT(answer("Who are you?"), HasSubstr("very small language model"));
}

/// Pairs that were held out, 50 of them in 256 tokens and 96 in 4,096: by chance one answer in fifty is right at most.
TEST(CliPocket, LooksUpWhatItsContextSays) {
  const ProgramResult result =
      run_tidepool({"eval", pocket(), "--task", "recall_256", "recall_4k", "--items", "20", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json scores = result.json();
  for (const char* test : {"recall_256", "recall_4k"})
    EXPECT_GE(at(at(at(scores, "tests"), test), "right").try_int64(), 18) << test;
}

TEST(CliPocket, DraftsAndThreadsLeaveItsAnswerAsItIs) {
  const std::string question = "How do I limit the cache on disk?";
  const std::string alone = answer(question, {"--draft", "off", "--threads", "1"});
  EXPECT_THAT(alone, HasSubstr("--kv-disk"));
  EXPECT_EQ(answer(question, {"--draft", "4", "--threads", "3"}), alone);
}

/// The text ends behind the last call, without the end of sentence.
TEST(CliPocket, AnswersThatCallToolsCountAsEnded) {
  const ProgramResult result = run_tidepool({"eval", pocket(), "--task", "tools", "--items", "4", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json scores = result.json();
  const Json& tools = at(at(scores, "tests"), "tools");
  EXPECT_EQ(at(tools, "ended").try_int64(), 4);
  EXPECT_GT(at(tools, "well_formed").try_int64(), 0);
}

}  // namespace
}  // namespace tidepool
