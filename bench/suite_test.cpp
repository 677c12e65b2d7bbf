#include "bench/suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "bench/suite_internal.h"

namespace tidepool::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Suite, LeavesOutWhatDoesNotFitInFiveMinutes) {
  const Entry entry{"long_one", {}, 4e12};  // 16 s at 0.25 of a TFLOP/s
  EXPECT_EQ(reason_to_skip(entry, 1e12, 283), std::nullopt);
  const std::optional<std::string> reason = reason_to_skip(entry, 1e12, 285);
  ASSERT_TRUE(reason.has_value());
  EXPECT_THAT(*reason, HasSubstr("about 16 s"));
  EXPECT_THAT(*reason, HasSubstr("--only long_one"));
  EXPECT_EQ(reason_to_skip({"short_one", {}, 0}, 1e12, 1000), std::nullopt);
}

TEST(Suite, SaysWhatWasLeftOut) {
  SuiteResult suite;
  suite.results.resize(2);
  suite.results[0].name = "measured";
  suite.results[0].share = 0.5;
  suite.results[1].name = "skipped_one";
  suite.results[1].skipped = "no time";
  const nlohmann::json results = nlohmann::json::parse(to_json(suite)).at("results");
  ASSERT_EQ(results.size(), 2);
  EXPECT_EQ(results[0].at("share"), 0.5);
  EXPECT_FALSE(results[0].contains("skipped"));
  EXPECT_EQ(results[1], nlohmann::json({{"name", "skipped_one"}, {"skipped", "no time"}}));
  EXPECT_THAT(to_table(suite), HasSubstr("left out: no time"));
  EXPECT_THAT(to_svg(suite), HasSubstr("measured"));
  EXPECT_THAT(to_svg(suite), Not(HasSubstr("skipped_one")));
}

TEST(Suite, PlotsAResultWhereItsOperationsPerByteSay) {
  SuiteResult suite;
  suite.machine.read_gbps = 50;
  suite.machine.fma_gflops = 500;
  suite.machine.avx512_bf16_tflops = 1;
  suite.results.resize(2);
  suite.results[0].name = "bound_by_memory";
  suite.results[0].operations_per_byte = 1;  // a fifth of the five decades of the axis, which is 520 wide from 190
  suite.results[0].gflops = 31.622776;       // halfway up the three decades below a TFLOP/s, which are 360 high from 40
  suite.results[1].name = "not_counted";
  const std::string svg = to_svg(suite);
  EXPECT_THAT(svg,
              HasSubstr("<circle cx=\"294.0\" cy=\"220.0\" r=\"3\"><title>bound_by_memory: 31.62 GFLOP/s</title>"));
  // Memory's slope meets the higher peak at 20 operations a byte, the lower one at 10.
  EXPECT_THAT(svg, HasSubstr("x2=\"429.3\" y2=\"40.0\" stroke=\"#3b7dd8\""));
  EXPECT_THAT(svg, HasSubstr("<line x1=\"398.0\" y1=\"76.1\" x2=\"710.0\" y2=\"76.1\" stroke=\"#d8873b\"/>"));
  EXPECT_THAT(svg, Not(HasSubstr("<title>not_counted")));
}

}  // namespace
}  // namespace tidepool::bench
