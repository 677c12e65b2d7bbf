#include "train/training_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "base/temp_folder.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

TrainingStep a_step(uint64_t stage, uint64_t step) {
  return {stage, stage == 0 ? "pretrain" : "long", step, 100 * step, 3.5, 0.25, 0.5, 0.001, 2,
          1000,  {{"all", 4.5}, {"recall", 0.125}}};
}

TEST(TrainingLog, ALineReadsBackAsItWas) {
  TrainingStep step = a_step(1, 7);
  step.loss = NAN;
  const std::vector<TrainingStep> back = parse_training_log(log_line(step) + "\n", "log");
  ASSERT_EQ(back.size(), 1U);
  EXPECT_EQ(back[0].stage_name, "long");
  EXPECT_EQ(back[0].step, 7U);
  EXPECT_EQ(back[0].tokens, 700U);
  EXPECT_TRUE(std::isnan(back[0].loss));
  EXPECT_EQ(back[0].rate, 0.001);
  EXPECT_EQ(back[0].part_losses, step.part_losses);
}

/// A run was killed in step 5, while writing step 5's line; its last saved state was that of step 3.
TEST(TrainingLog, StepsThatWillBeDoneAgainAreCutOff) {
  const TempFolder folder;
  std::string text;
  for (uint64_t step = 1; step <= 4; ++step)
    text += log_line(a_step(0, step)) + "\n";
  std::ofstream(folder / "log.jsonl") << text << R"({"stage": 0, "sta)";
  TrainingLog log(folder / "log.jsonl", 0, 3);
  log.append(a_step(0, 4));
  log.append(a_step(1, 1));
  EXPECT_EQ(read_file(folder / "log.jsonl", 10'000), text + log_line(a_step(1, 1)) + "\n");
  EXPECT_EQ(log.steps().size(), 5U);
}

TEST(TrainingLog, ALineThatIsNoStepIsNamed) {
  for (const char* line : {"{}", "[", R"({"stage": -1})", R"({"stage": 0, "stage_name": 3})"}) {
    try {
      (void)parse_training_log(log_line(a_step(0, 1)) + "\n" + line + "\n", "run/log.jsonl");
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("run/log.jsonl:2: ")) << line;
    }
  }
}

TEST(TrainingLog, EachStageIsACurve) {
  const std::vector<LossCurve> curves = loss_curves({a_step(0, 1), a_step(0, 2), a_step(1, 1)});
  ASSERT_EQ(curves.size(), 2U);
  EXPECT_EQ(curves[0].name, "pretrain");
  EXPECT_EQ(curves[0].points.size(), 2U);
  EXPECT_EQ(curves[1].points.front().tokens, 100);
}

}  // namespace
}  // namespace tidepool
