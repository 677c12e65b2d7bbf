#include "train/loss_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string_view>

namespace tidepool {

namespace {

constexpr double kWidth = 760;
constexpr double kHeight = 420;
constexpr double kLeft = 64;
constexpr double kRight = 16;
constexpr double kTop = 40;
constexpr double kBottom = 48;
constexpr size_t kPointsMax = 680;  ///< one for each unit of the drawing's width, about
constexpr int kTicks = 5;
// Told apart by those who do not see all colours: seven of Okabe and Ito (their yellow is too faint on white), then
// darker ones of Tol, and grey. As many as the pocket model's recipe has stages; behind these, colours come again.
constexpr std::array<std::string_view, 12> kCurveColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                            "#e69f00", "#56b4e9", "#000000", "#882255",
                                                            "#999933", "#332288", "#117733", "#7f7f7f"};

struct AxisRange {
  double low = 0;
  double high = 1;
};

std::vector<LossCurve::Point> drawn_points(const LossCurve& curve) {
  std::vector<LossCurve::Point> finite;
  finite.reserve(curve.points.size());
  std::ranges::copy_if(curve.points, std::back_inserter(finite),
                       [](const LossCurve::Point& p) { return std::isfinite(p.loss) && std::isfinite(p.tokens); });
  const size_t run = (finite.size() + kPointsMax - 1) / kPointsMax;
  if (run <= 1) return finite;
  std::vector<LossCurve::Point> averaged;
  averaged.reserve(kPointsMax);
  for (size_t begin = 0; begin < finite.size(); begin += run) {
    const size_t end = std::min(begin + run, finite.size());
    LossCurve::Point mean;
    for (size_t i = begin; i < end; ++i) {
      mean.tokens += finite[i].tokens / static_cast<double>(end - begin);
      mean.loss += finite[i].loss / static_cast<double>(end - begin);
    }
    averaged.push_back(mean);
  }
  return averaged;
}

/// 1, 2 or 5 times a power of ten, such that about kTicks of them fill the range.
double tick_step(const AxisRange& range) {
  const double raw = (range.high - range.low) / kTicks;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

std::string tokens_label(double tokens) {
  if (tokens >= 1e9) return fmt::format("{:g}G", tokens / 1e9);
  if (tokens >= 1e6) return fmt::format("{:g}M", tokens / 1e6);
  if (tokens >= 1e3) return fmt::format("{:g}k", tokens / 1e3);
  return fmt::format("{:g}", tokens);
}

std::string escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else {
      result += c;
    }
  }
  return result;
}

class Drawing {
 public:
  Drawing(const AxisRange& tokens, const AxisRange& loss) : tokens_(tokens), loss_(loss) {}

  void begin(const std::string& title) {
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" "
        "font-size=\"12\"><rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
        "<text x=\"{2}\" y=\"22\" font-size=\"15\">{3}</text>\n",
        kWidth, kHeight, kLeft, escaped(title));
  }
  void axes() {
    for (double value = std::ceil(loss_.low / tick_step(loss_)) * tick_step(loss_); value <= loss_.high;
         value += tick_step(loss_)) {
      out_ += fmt::format(
          "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>"
          "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.3g}</text>\n",
          kLeft, kWidth - kRight, y(value), kLeft - 6, y(value) + 4, value);
    }
    for (double value = std::ceil(tokens_.low / tick_step(tokens_)) * tick_step(tokens_); value <= tokens_.high;
         value += tick_step(tokens_)) {
      out_ += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x(value),
                          kHeight - kBottom + 18, tokens_label(value));
    }
    out_ += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">tokens</text>\n", kWidth / 2, kHeight - 10);
    out_ += fmt::format("<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">nats a token</text>\n",
                        kHeight / 2);
  }
  void curve(const std::vector<LossCurve::Point>& points, const std::string& name, size_t place) {
    const std::string_view colour = kCurveColours[place % kCurveColours.size()];
    out_ += fmt::format("<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"{}\" points=\"", colour);
    for (const LossCurve::Point& point : points)
      out_ += fmt::format("{:.1f},{:.1f} ", x(point.tokens), y(point.loss));
    out_ += "\"/>\n";
    out_ += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"{}\">{}</text>\n", kWidth - kRight - 4,
                        kTop + 14 + 16 * static_cast<double>(place), colour, escaped(name));
  }
  [[nodiscard]] std::string finish() && { return std::move(out_) + "</svg>\n"; }

 private:
  [[nodiscard]] double x(double tokens) const {
    return kLeft + (tokens - tokens_.low) / (tokens_.high - tokens_.low) * (kWidth - kLeft - kRight);
  }
  [[nodiscard]] double y(double loss) const {
    return kHeight - kBottom - (loss - loss_.low) / (loss_.high - loss_.low) * (kHeight - kTop - kBottom);
  }

  AxisRange tokens_;
  AxisRange loss_;
  std::string out_;
};

/// From the least to the greatest, never empty.
AxisRange range_of(std::span<const std::vector<LossCurve::Point>> curves, double LossCurve::Point::*coordinate) {
  AxisRange range{INFINITY, -INFINITY};
  for (const auto& points : curves) {
    for (const LossCurve::Point& point : points) {
      range.low = std::min(range.low, point.*coordinate);
      range.high = std::max(range.high, point.*coordinate);
    }
  }
  if (range.low > range.high) return {};
  // Where all values are the same but for their last digits, a step between ticks would be lost in them.
  const double size = std::max(std::abs(range.low), std::abs(range.high));
  constexpr double kRangeMin = 1e-9;
  if (range.high - range.low > kRangeMin * size) return range;
  const double half = std::max(0.5, 1e-6 * size);
  return {range.low - half, range.high + half};
}

}  // namespace

std::string loss_plot_svg(std::span<const LossCurve> curves, const std::string& title) {
  std::vector<std::vector<LossCurve::Point>> drawn;
  drawn.reserve(curves.size());
  for (const LossCurve& curve : curves)
    drawn.push_back(drawn_points(curve));
  Drawing drawing(range_of(drawn, &LossCurve::Point::tokens), range_of(drawn, &LossCurve::Point::loss));
  drawing.begin(title);
  drawing.axes();
  for (size_t i = 0; i < curves.size(); ++i)
    drawing.curve(drawn[i], curves[i].name, i);
  return std::move(drawing).finish();
}

}  // namespace tidepool
