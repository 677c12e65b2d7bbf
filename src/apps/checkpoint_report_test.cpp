#include "apps/checkpoint_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace tidepool {
namespace {

using testing::HasSubstr;

TEST(CheckpointReport, FormatsParametersAsModelsAreNamed) {
  EXPECT_EQ(format_parameters(551'566'165'104), "552B");
  EXPECT_EQ(format_parameters(196'613'849'600), "196.6B");
  EXPECT_EQ(format_parameters(14'225'362'530), "14.2B");
  EXPECT_EQ(format_parameters(485'283'840), "0.485B");
  EXPECT_EQ(format_parameters(3'945'904), "3.95M");
  EXPECT_EQ(format_parameters(29'952), "30.0K");
}

TEST(CheckpointReport, FormatsBytesInDecimalUnits) {
  EXPECT_EQ(format_bytes(890), "890 B");
  EXPECT_EQ(format_bytes(2'996'000), "3.00 MB");
  EXPECT_EQ(format_bytes(510'286'023'000), "510.3 GB");
  EXPECT_EQ(format_bytes(2'500'000'000'000'000), "2500.0 TB");
}

TEST(CheckpointReport, FormatsCountsInThousands) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(1'048'576), "1,048,576");
}

/// The tiny golden checkpoint: 6,138,140 bytes, of them 30,888 of Engram tables (29,952 values and 936 scales).
class MemoryPlanTest : public testing::Test {
 protected:
  [[nodiscard]] MemoryPlan plan(uint64_t available) const {
    return make_checkpoint_report(*checkpoint_, {.memory_total = 2 * available, .memory_available = available}).plan;
  }

  std::shared_ptr<const Checkpoint> checkpoint_ = Checkpoint::open(std::filesystem::path(TIDEPOOL_GOLDEN_DIR) / "ckpt");
};

TEST_F(MemoryPlanTest, CountsWeightsAndTables) {
  EXPECT_EQ(plan(0).weight_bytes, 6'138'140U);
  EXPECT_EQ(plan(0).table_bytes, 30'888U);
}

/// Per token: half a latent (64 values in FP4: 32 bytes and 4 scales) and half an index key (32 values: 16 bytes and 1
/// scale) of layer 2, with ratio 2, and a whole one of each of layer 5: (36 + 17) * 1.5 = 79.5, or 159 bytes for two.
TEST_F(MemoryPlanTest, CountsTheKvOfTokens) {
  EXPECT_EQ(plan(0).token_bytes, 79U);
  const MemoryPlan p = plan(0);
  ASSERT_EQ(p.contexts.size(), 3U);
  EXPECT_EQ(p.contexts[0].tokens, 1024);
  EXPECT_EQ(p.contexts[0].kv_bytes, 1024U * 159 / 2);
  EXPECT_EQ(p.contexts[2].tokens, 1'048'576);
}

TEST_F(MemoryPlanTest, SaysWhatFits) {
  EXPECT_THAT(plan(1'000'000'000).verdict, HasSubstr("All weights fit in the available memory (6.14 MB of 1.00 GB)"));
  EXPECT_THAT(plan(1'000'000'000).verdict, HasSubstr("the whole context of 1,024 tokens"));
  // Room for the weights, the fixed part of a sequence and 8,000 bytes: 101 tokens of 79.
  const uint64_t sequence = plan(0).sequence_bytes;
  EXPECT_THAT(plan(6'138'140 + sequence + 8'000).verdict, HasSubstr("room for a context of 101 tokens"));
  EXPECT_THAT(plan(6'138'140 + sequence - 1).verdict, HasSubstr("All weights but the Engram tables fit"));
  EXPECT_THAT(plan(6'000'000).verdict, HasSubstr("expect the speed of the disk"));
  EXPECT_THAT(plan(0).verdict, HasSubstr("does not say"));
}

}  // namespace
}  // namespace tidepool
