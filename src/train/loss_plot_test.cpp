#include "train/loss_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace tidepool {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string points_of(const std::string& svg) {
  const size_t begin = svg.find("points=\"") + 8;
  return svg.substr(begin, svg.find('"', begin) - begin);
}

/// The plot's frame runs from x = 64 to 744 and from y = 40 (the greatest loss) to 372 (the least).
TEST(LossPlot, PutsTheFirstAndTheLastPointIntoTheCorners) {
  const std::vector<LossCurve> curves = {{"run", {{0, 8}, {500, 5}, {1000, 2}}}};
  EXPECT_EQ(points_of(loss_plot_svg(curves, "loss")), "64.0,40.0 404.0,206.0 744.0,372.0 ");
}

TEST(LossPlot, NamesAreTextAndNotMarkup) {
  const std::vector<LossCurve> curves = {{"a<b&c", {{0, 1}, {1, 0}}}};
  EXPECT_THAT(loss_plot_svg(curves, "x<y"), testing::AllOf(HasSubstr("a&lt;b&amp;c"), HasSubstr("x&lt;y")));
}

TEST(LossPlot, LeavesOutWhatIsNotFiniteAndTakesNoPointsAtAll) {
  const std::vector<LossCurve> curves = {{"run", {{0, 1}, {1, NAN}, {2, INFINITY}, {3, 0}}}, {"empty", {}}};
  const std::string svg = loss_plot_svg(curves, "loss");
  EXPECT_EQ(points_of(svg), "64.0,40.0 744.0,372.0 ");
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(loss_plot_svg({}, "nothing"), HasSubstr("</svg>"));
}

TEST(LossPlot, TwelveCurvesHaveTwelveColours) {
  const std::vector<LossCurve> curves(12, {"run", {{0, 1}, {1, 0}}});
  const std::string svg = loss_plot_svg(curves, "loss");
  std::set<std::string> colours;
  const std::string mark = "stroke-width=\"1.5\" stroke=\"";
  for (size_t at = svg.find(mark); at != std::string::npos; at = svg.find(mark, at + 1))
    colours.insert(svg.substr(at + mark.size(), 7));
  EXPECT_EQ(colours.size(), 12U);
}

TEST(LossPlot, LossesThatDifferInTheirLastDigitsHaveAnAxisOfTheirOwn) {
  for (const double loss : {0.0, 4.0, -1e300, 1e300}) {
    const double next = std::nextafter(loss, INFINITY);
    const std::string svg = loss_plot_svg(std::vector<LossCurve>{{"run", {{0, loss}, {1, next}, {2, loss}}}}, "loss");
    EXPECT_LT(svg.size(), 10'000U) << loss;
    EXPECT_THAT(svg, Not(HasSubstr("nan"))) << loss;
  }
}

TEST(LossPlot, LongCurvesAreAveragedOverEqualRuns) {
  LossCurve curve{"run", {}};
  curve.points.reserve(1360);
  for (int i = 0; i < 1360; ++i)  // two points for each unit of width
    curve.points.push_back({static_cast<double>(i), i % 2 == 0 ? 1.0 : 3.0});
  const std::string points = points_of(loss_plot_svg(std::vector<LossCurve>{curve}, "loss"));
  EXPECT_EQ(std::ranges::count(points, ','), 680);
  EXPECT_THAT(points, Not(HasSubstr(",40.0")));  // all averages are 2, in the middle
  EXPECT_THAT(points, HasSubstr(",206.0"));
}

}  // namespace
}  // namespace tidepool
