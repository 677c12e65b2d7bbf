#include "image/plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "image/image_test_support.h"

namespace tidepool {
namespace {

constexpr ImagePlanConfig kReleased{.patch = 14, .downsample = 3, .tokens_max = 1024, .pixels_min = 295'936};

ImagePlan plan(int64_t width, int64_t height) {
  return plan_image(kReleased, width, height);
}

struct Row {
  int64_t width, height;
  int64_t canvas_width, canvas_height;
  int64_t columns, rows;
  int64_t tokens;
};

/// Published figures, some of them in docs/images.md.
constexpr Row kTable[] = {
    {224, 224, 546, 546, 13, 13, 184},      {512, 512, 546, 546, 13, 13, 184},
    {544, 544, 546, 546, 13, 13, 184},      {640, 480, 644, 490, 16, 12, 206},
    {800, 800, 812, 812, 20, 20, 422},      {1280, 720, 1288, 728, 31, 18, 578},
    {1008, 1008, 1008, 1008, 24, 24, 602},  {1260, 1260, 1260, 1260, 30, 30, 932},
    {1302, 1302, 1302, 1302, 31, 31, 994},  {1261, 1261, 1274, 1274, 31, 31, 994},
    {4000, 4000, 1302, 1302, 31, 31, 994},  {1344, 1344, 1302, 1302, 31, 31, 994},
    {1920, 1080, 1708, 966, 41, 23, 968},   {3840, 2160, 1708, 966, 41, 23, 968},
    {1080, 1920, 966, 1708, 23, 41, 986},   {2000, 1500, 1512, 1134, 36, 27, 1001},
    {1500, 2000, 1134, 1512, 27, 36, 1010},
};

TEST(Plan, GivesThePublishedTable) {
  for (const Row& row : kTable) {
    const ImagePlan p = plan(row.width, row.height);
    EXPECT_EQ(p.canvas_width, row.canvas_width) << row.width << " x " << row.height;
    EXPECT_EQ(p.canvas_height, row.canvas_height) << row.width << " x " << row.height;
    EXPECT_EQ(p.cell_columns, row.columns) << row.width << " x " << row.height;
    EXPECT_EQ(p.cell_rows, row.rows) << row.width << " x " << row.height;
    EXPECT_EQ(p.tokens(), row.tokens) << row.width << " x " << row.height;
  }
}

/// The same plan by counting instead of formulas: tries every number of whole cells for the over-budget case and every
/// multiple of the patch for the canvas, in extended precision.
ImagePlan slow_plan(const ImagePlanConfig& c, int64_t width, int64_t height) {
  using Real = long double;
  Real w = static_cast<Real>(width);
  Real h = static_cast<Real>(height);
  if (w * h < static_cast<Real>(c.pixels_min)) {
    const Real scale = std::sqrt(static_cast<Real>(c.pixels_min) / (w * h));
    w = std::floor(w * scale);
    h = std::floor(h * scale);
  }
  const auto patches_for = [&](Real side) {
    int64_t n = 1;
    while (static_cast<Real>(n * c.patch) < side)
      ++n;
    return n;
  };
  const auto cells_for = [&](int64_t patches) {
    int64_t n = 1;
    while (n * c.downsample < patches)
      ++n;
    return n;
  };
  ImagePlan p;
  p.patch_columns = patches_for(w);
  p.patch_rows = patches_for(h);
  p.cell_columns = cells_for(p.patch_columns);
  p.cell_rows = cells_for(p.patch_rows);
  if (p.tokens() > c.tokens_max) {
    // The real grid (x, x * h / w) with x * h / w * (x + 1) = budget; its whole parts are the cells that may be filled.
    const Real budget = static_cast<Real>(c.tokens_max - 2);
    int64_t columns = 0;
    while (static_cast<Real>(columns + 1) * h / w * static_cast<Real>(columns + 2) <= budget)
      ++columns;
    int64_t rows = 0;
    while (static_cast<Real>(rows + 1) * (static_cast<Real>(rows + 1) * w / h + 1) <= budget)
      ++rows;
    const auto cell = static_cast<Real>(c.patch * c.downsample);
    if (columns < 1) {
      p.patch_columns = c.downsample;
      p.patch_rows = (c.tokens_max - 2) / 2 * c.downsample;
    } else if (rows < 1) {
      p.patch_rows = c.downsample;
      p.patch_columns = (c.tokens_max - 3) * c.downsample;
    } else {
      const Real scale = std::min(static_cast<Real>(columns) * cell / w, static_cast<Real>(rows) * cell / h);
      p.patch_columns = 0;
      while (static_cast<Real>((p.patch_columns + 1) * c.patch) <= w * scale + 1e-12L)
        ++p.patch_columns;
      p.patch_rows = 0;
      while (static_cast<Real>((p.patch_rows + 1) * c.patch) <= h * scale + 1e-12L)
        ++p.patch_rows;
    }
    p.cell_columns = cells_for(p.patch_columns);
    p.cell_rows = cells_for(p.patch_rows);
  }
  p.canvas_width = p.patch_columns * c.patch;
  p.canvas_height = p.patch_rows * c.patch;
  return p;
}

/// Whether a picture's plan equals the slow one's. The side that fills its cells is a whole number of patches in exact
/// arithmetic; in binary64, which counts because the reference computes so, it may fall just short and lose one patch.
enum class Agreement : uint8_t { kEqual, kEdge, kNone };
Agreement compare(const ImagePlanConfig& config, int64_t width, int64_t height) {
  const ImagePlan fast = plan_image(config, width, height);
  const ImagePlan slow = slow_plan(config, width, height);
  const int64_t lost_columns = slow.patch_columns - fast.patch_columns;
  const int64_t lost_rows = slow.patch_rows - fast.patch_rows;
  if (lost_columns == 0 && lost_rows == 0) return Agreement::kEqual;
  const bool is_edge = (lost_columns == 0 || (lost_columns == 1 && slow.patch_columns % config.downsample == 0)) &&
                       (lost_rows == 0 || (lost_rows == 1 && slow.patch_rows % config.downsample == 0));
  return is_edge ? Agreement::kEdge : Agreement::kNone;
}

TEST(Plan, AgreesWithCountingOverThousandsOfSizes) {
  std::mt19937 random(1);
  int64_t edges = 0;
  int64_t count = 0;
  const auto look_at = [&](int64_t width, int64_t height) {
    ++count;
    const Agreement agreement = compare(kReleased, width, height);
    if (agreement == Agreement::kEdge) ++edges;
    EXPECT_NE(agreement, Agreement::kNone) << width << " x " << height;
  };
  for (int64_t side = 1; side <= 2000; ++side)
    look_at(side, side);
  for (int i = 0; i < 4000; ++i)
    look_at(1 + random() % 3000, 1 + random() % 3000);
  for (int i = 0; i < 500; ++i) {
    look_at(1 + random() % 65'535, 60 + random() % 60);
    look_at(60 + random() % 60, 1 + random() % 65'535);
  }
  EXPECT_EQ(count, 7000);
  EXPECT_LE(edges, 140);  // 83 when written; were the formulas different, there would be thousands
}

TEST(Plan, NeverExceedsItsBounds) {
  std::mt19937 random(2);
  int64_t most_tokens = 0;
  int64_t most_patches = 0;
  const auto look_at = [&](int64_t width, int64_t height) {
    const ImagePlan p = plan(width, height);
    most_tokens = std::max(most_tokens, p.tokens());
    most_patches = std::max(most_patches, p.patches());
    ASSERT_LE(p.scaled_width + p.x, p.canvas_width);
    ASSERT_LE(p.scaled_height + p.y, p.canvas_height);
    ASSERT_EQ(p.canvas_width, p.patch_columns * 14);
    ASSERT_EQ(p.canvas_height, p.patch_rows * 14);
  };
  for (int i = 0; i < 20'000; ++i) {
    // Every shape from 1:1000 to 1000:1 alike.
    const double area = std::exp(std::uniform_real_distribution<double>(5, 17)(random));
    const double shape = std::exp(std::uniform_real_distribution<double>(-6.5, 6.5)(random));
    look_at(std::max<int64_t>(1, std::llround(std::sqrt(area * shape))),
            std::max<int64_t>(1, std::llround(std::sqrt(area / shape))));
  }
  // Squares are not the worst case: 2814 x 630 needs more patches than 1302 x 1302, and one row of cells needs most.
  look_at(2814, 630);
  look_at(42'882, 42);
  EXPECT_LE(most_tokens, 1024);
  EXPECT_EQ(most_patches, 9189);
  EXPECT_EQ(image_patches_max(kReleased), 9189);
}

TEST(Plan, TakesOnePixelAndStrips) {
  EXPECT_EQ(plan(1, 1).tokens(), 184);
  const ImagePlan tall = plan(1, 5000);
  EXPECT_EQ(tall.cell_columns, 1);
  EXPECT_EQ(tall.tokens(), 1024);
  EXPECT_GE(tall.scaled_width, 1);
  const ImagePlan wide = plan(5000, 1);
  EXPECT_EQ(wide.cell_rows, 1);
  EXPECT_LE(wide.tokens(), 1024);
}

TEST(Plan, APictureOfWhichNothingWouldBeLeftIsRefused) {
  // 100,000 x 1 would be 42,882 wide and 0.43 pixels high. Decoded pictures are at most 65,535 a side, which is fine.
  EXPECT_EQ(plan(65'535, 1).scaled_height, 1);
  try {
    (void)prepare_image(kReleased, RgbImage(100'000, 1), "picture");
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()).find("picture: the picture is 100000 x 1"), 0U) << error.what();
  }
}

TEST(Plan, PreparedPicturesLieOnGrey) {
  const RgbImage image = image_test::noise_image(640, 480, 4);
  const PreparedImage prepared = prepare_image(kReleased, image, "picture");
  EXPECT_EQ(prepared.canvas.width, 644U);
  EXPECT_EQ(prepared.canvas.height, 490U);
  EXPECT_EQ(prepared.plan.scaled_height, 483);
  EXPECT_EQ(prepared.plan.y, 4);  // (490 - 483) / 2 = 3.5, to the even neighbour
  EXPECT_EQ(prepared.canvas.row(0)[0], 127);
  EXPECT_EQ(prepared.canvas.row(489)[0], 127);
}

}  // namespace
}  // namespace tidepool
