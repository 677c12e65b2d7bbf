#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tidepool {

/// One line of a plot: loss over tokens.
struct LossCurve {
  struct Point {
    double tokens = 0;
    double loss = 0;  ///< nats a token
  };
  std::string name;
  std::vector<Point> points;  ///< in order of tokens
};

/// An SVG drawing of the curves, with axes and a legend. Curves of more points than the drawing is wide are averaged
/// over equal runs of points; points that are not finite are left out.
[[nodiscard]] std::string loss_plot_svg(std::span<const LossCurve> curves, const std::string& title);

}  // namespace tidepool
