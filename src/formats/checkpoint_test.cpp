#include "formats/checkpoint.h"

#include <gtest/gtest.h>

namespace tidepool {
namespace {

const std::filesystem::path kGolden = TIDEPOOL_GOLDEN_DIR;

TEST(Checkpoint, OpensTheGoldenShards) {
  const auto checkpoint = Checkpoint::open(kGolden / "ckpt");
  EXPECT_TRUE(checkpoint->has_part(ExpectedTensor::Part::kEngram));
  EXPECT_TRUE(checkpoint->has_part(ExpectedTensor::Part::kDspark));
  EXPECT_TRUE(checkpoint->has_part(ExpectedTensor::Part::kVision));
  const MatrixView wq_a = checkpoint->matrix("layers.0.attn.wq_a");
  EXPECT_EQ(wq_a.format, MatrixFormat::kFp8Tile32);
  EXPECT_EQ(wq_a.out, 64U);
  EXPECT_EQ(wq_a.in, 192U);
}

TEST(Checkpoint, OpensTheGoldenSingleFile) {
  const auto checkpoint = Checkpoint::open(kGolden / "ckpt_textonly");
  EXPECT_FALSE(checkpoint->has_part(ExpectedTensor::Part::kEngram));
  EXPECT_FALSE(checkpoint->has_part(ExpectedTensor::Part::kDspark));
  EXPECT_FALSE(checkpoint->has_part(ExpectedTensor::Part::kVision));
  EXPECT_EQ(checkpoint->matrix("layers.0.ffn.experts.0.w1").format, MatrixFormat::kFp4Block32);
}

}  // namespace
}  // namespace tidepool
