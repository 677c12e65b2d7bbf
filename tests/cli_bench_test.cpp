#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/file.h"
#include "base/temp_folder.h"
#include "cli_program.h"

namespace tidepool {
namespace {

using testing::HasSubstr;

/// Fills a gigabyte and measures the machine first: seconds, and minutes under sanitizers.
TEST(CliBenchSlow, OneResultComesWithItsLimitAndAPlot) {
  const TempFolder folder;
  const std::string plot = (folder / "shares.svg").string();
  const ProgramResult result = run_tidepool({"bench", "kernels", "--only", "topk_1m", "--json", "--plot", plot});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json document = result.json();
  EXPECT_NE(document.find("machine")->find("read_gbps"), nullptr);
  const Json& entry = at(document, "results").as_array().at(0);
  EXPECT_EQ(at(entry, "name").as_string(), "topk_1m");
  for (const char* key : {"shape", "threads", "median", "unit", "limit", "limit_value", "share"}) {
    EXPECT_NE(entry.find(key), nullptr) << key;
  }
  EXPECT_THAT(read_file(plot, 1 << 20), HasSubstr("topk_1m"));
}

TEST(CliBench, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const ProgramResult result = run_tidepool({"bench", "kernels", "--only", "nothing"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("fp4_expert_gemv_n1"));
  EXPECT_EQ(run_tidepool({"bench", "everything"}).status, 2);
}

}  // namespace
}  // namespace tidepool
