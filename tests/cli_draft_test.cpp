#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "cli_program.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

ProgramResult run_with_draft(const std::string& draft, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"run", golden("ckpt"), "--prompt-ids", "5,6,7,8,9,10", "--max-tokens",
                                        "40",  "--ignore-eos", "--json",       "--draft",      draft};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_tidepool(arguments);
}

TEST(CliDraft, GreedyTextIsTheSameWhateverIsDrafted) {
  const ProgramResult plain = run_with_draft("off", {"--temperature", "0"});
  ASSERT_EQ(plain.status, 0) << plain.err;
  for (const std::string draft : {"auto", "1", "3", "64"}) {
    const ProgramResult result = run_with_draft(draft, {"--temperature", "0"});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(integers(at(result.json(), "output_ids")), integers(at(plain.json(), "output_ids"))) << draft;
  }
}

TEST(CliDraft, JsonSaysWhatBecameOfTheDrafts) {
  const ProgramResult result = run_with_draft("2", {"--temperature", "0"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json answer = result.json();
  const Json& drafts = at(answer, "drafts");
  const std::vector<int64_t> proposed = integers(at(drafts, "proposed"));
  const std::vector<int64_t> accepted = integers(at(drafts, "accepted"));
  ASSERT_EQ(proposed.size(), 2U);
  ASSERT_EQ(accepted.size(), 2U);
  const int64_t taken = accepted[0] + accepted[1];
  EXPECT_GT(taken, 0);
  // The prompt gives a token, and a step one more than its drafts that are taken; the last one may stand alone.
  EXPECT_NEAR(static_cast<double>(*at(drafts, "steps").try_int64() + taken + 1), 40, 1);
  EXPECT_EQ(at(at(answer, "usage"), "accepted_prediction_tokens").try_int64(), taken);
  EXPECT_EQ(at(at(answer, "usage"), "rejected_prediction_tokens").try_int64(), proposed[0] + proposed[1] - taken);
}

TEST(CliDraft, SameSeedGivesTheSameTextWithDrafts) {
  for (const std::string draft : {"auto", "4"}) {
    const ProgramResult first = run_with_draft(draft, {"--seed", "7"});
    const ProgramResult second = run_with_draft(draft, {"--seed", "7"});
    ASSERT_EQ(first.status, 0) << first.err;
    EXPECT_EQ(integers(at(first.json(), "output_ids")), integers(at(second.json(), "output_ids"))) << draft;
  }
}

TEST(CliDraft, WrongValuesAndMissingHeadsAreNamed) {
  const ProgramResult wrong = run_with_draft("many", {});
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.err, HasSubstr("use off, auto, or a number from 1 to 64"));
  const std::vector<std::string> headless = {
      "run", golden("ckpt_textonly"), "--prompt-ids", "5,6", "--max-tokens", "2", "--json", "--draft", "4"};
  const ProgramResult refused = run_tidepool(headless);
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("no draft head"));
}

}  // namespace
}  // namespace tidepool
