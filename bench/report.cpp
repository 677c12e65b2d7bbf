#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/suite.h"
#include "bench/suite_internal.h"

namespace tidepool::bench {

using Json = nlohmann::ordered_json;

namespace {

Json or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

/// The multiply ceilings in one phrase.
std::string peaks_text(const Machine& machine) {
  std::string text = fmt::format("multiplies {:.0f} GFLOP/s (binary32)", machine.fma_gflops);
  if (machine.avx512_bf16_tflops) text += fmt::format(", {:.2f} TFLOP/s (bfloat16)", *machine.avx512_bf16_tflops);
  if (machine.amx_bf16_tflops) text += fmt::format(", {:.2f} TFLOP/s (tiles)", *machine.amx_bf16_tflops);
  return text;
}

}  // namespace

std::string to_json(const SuiteResult& suite) {
  const Machine& machine = suite.machine;
  Json document;
  document["machine"] = {{"cpu", machine.cpu},
                         {"threads", machine.threads},
                         {"isa", machine.isa},
                         {"read_gbps", machine.read_gbps},
                         {"read_gbps_by_threads", machine.read_gbps_by_threads},
                         {"read_streams", machine.read_streams},
                         {"disk_read_gbps", or_null(machine.disk_read_gbps)},
                         {"fma_gflops", machine.fma_gflops},
                         {"amx_bf16_tflops", or_null(machine.amx_bf16_tflops)},
                         {"avx512_bf16_tflops", or_null(machine.avx512_bf16_tflops)}};
  document["results"] = Json::array();
  for (const Result& result : suite.results) {
    if (result.skipped) {
      document["results"].push_back({{"name", result.name}, {"skipped", *result.skipped}});
      continue;
    }
    Json entry{
        {"name", result.name}, {"shape", result.shape}, {"threads", result.threads},         {"median", result.median},
        {"unit", result.unit}, {"limit", result.limit}, {"limit_value", result.limit_value}, {"share", result.share}};
    if (result.gflops > 0) {
      entry["gflops"] = result.gflops;
      entry["operations_per_byte"] = result.operations_per_byte;
    }
    for (const auto& [part, share] : result.split)
      entry["split"][part] = share;
    document["results"].push_back(std::move(entry));
  }
  return document.dump(2);
}

std::string to_table(const SuiteResult& suite) {
  const Machine& machine = suite.machine;
  std::string text = fmt::format("{}\n{} kernels on {} threads; reads {:.1f} GB/s, {}\n", machine.cpu, machine.isa,
                                 machine.threads, machine.read_gbps, peaks_text(machine));
  text += machine.disk_read_gbps ? fmt::format("disk: reads {:.2f} GB/s\n\n", *machine.disk_read_gbps)
                                 : "disk: not measured, its files are in memory\n\n";
  text += fmt::format("{:<21}  {:>10}  {:<8}  {:>10}  {:>6}  {}\n", "name", "median", "unit", "limit", "share", "what");
  for (const Result& result : suite.results) {
    if (result.skipped) {
      text += fmt::format("{:<21}  left out: {}\n", result.name, *result.skipped);
      continue;
    }
    text += fmt::format("{:<21}  {:>10.4g}  {:<8}  {:>10.4g}  {:>6.2f}  {}\n", result.name, result.median, result.unit,
                        result.limit_value, result.share, result.shape);
    for (const auto& [part, share] : result.split)
      text += fmt::format("{:>49.1f} %  {}\n", share * 100, part);
  }
  if (yardstick_entries().empty()) text += "\noneDNN, a yardstick, is not built in (docs/dependencies.md)\n";
  return text;
}

namespace {

constexpr int kLeft = 190;
constexpr int kWidth = 520;  // of the bars' full limit, and of the roofline
constexpr int kBarHeight = 22;
constexpr int kSvgWidth = kLeft + kWidth + 190;
constexpr const char* kReadColour = "#3b7dd8";
constexpr const char* kPeakColour = "#d8873b";

/// Decades of both axes of the roofline.
struct Axes {
  static constexpr double kIntensityMin = 0.1;
  static constexpr double kIntensityMax = 1e4;  // operations per byte
  static constexpr int kTop = 40;
  static constexpr int kHeight = 360;
  double rate_min = 1;  // GFLOP/s
  double rate_max = 1;

  explicit Axes(double peak) : rate_max(std::pow(10.0, std::ceil(std::log10(std::max(peak, 10.0))))) {
    rate_min = rate_max / 1e3;
  }
  [[nodiscard]] double x(double intensity) const {
    return kLeft + kWidth * std::log10(intensity / kIntensityMin) / std::log10(kIntensityMax / kIntensityMin);
  }
  [[nodiscard]] double y(double rate) const {
    const double height = std::log10(std::clamp(rate, rate_min, rate_max) / rate_min) / std::log10(rate_max / rate_min);
    return kTop + kHeight * (1 - height);
  }
};

/// The multipliers of a machine that were measured, in GFLOP/s.
std::vector<std::pair<std::string, double>> peaks_of(const Machine& machine) {
  std::vector<std::pair<std::string, double>> peaks{{"binary32", machine.fma_gflops}};
  if (machine.avx512_bf16_tflops) peaks.emplace_back("bfloat16 pairs", *machine.avx512_bf16_tflops * 1e3);
  if (machine.amx_bf16_tflops) peaks.emplace_back("bfloat16 tiles", *machine.amx_bf16_tflops * 1e3);
  return peaks;
}

std::string svg_line(double x1, double y1, double x2, double y2, const char* colour) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2, y2,
                     colour);
}

std::string svg_text(double x, double y, const char* anchor, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, text);
}

std::string svg_axes(const Axes& axes) {
  constexpr const char* kGrid = "#ddd";
  constexpr double kBottom = Axes::kTop + Axes::kHeight;
  std::string svg;
  for (double intensity = Axes::kIntensityMin; intensity <= Axes::kIntensityMax * 1.01; intensity *= 10) {
    svg += svg_line(axes.x(intensity), Axes::kTop, axes.x(intensity), kBottom, kGrid);
    svg += svg_text(axes.x(intensity), kBottom + 16, "middle", fmt::format("{:g}", intensity));
  }
  for (double rate = axes.rate_min; rate <= axes.rate_max * 1.01; rate *= 10) {
    svg += svg_line(kLeft, axes.y(rate), kLeft + kWidth, axes.y(rate), kGrid);
    svg += svg_text(kLeft - 8, axes.y(rate) + 4, "end", fmt::format("{:g} GFLOP/s", rate));
  }
  return svg + svg_text(kLeft + kWidth / 2.0, kBottom + 34, "middle", "operations per byte of memory");
}

/// Memory's slope up to the highest peak, the peaks, and a numbered point for each result, numbers as in the bars.
std::string svg_roofline(const SuiteResult& suite) {
  const Machine& machine = suite.machine;
  const auto peaks = peaks_of(machine);
  const double highest = std::max_element(peaks.begin(), peaks.end(), [](const auto& a, const auto& b) {
                           return a.second < b.second;
                         })->second;
  const Axes axes(highest);
  std::string svg = svg_axes(axes);
  if (machine.read_gbps > 0) {
    const double from = std::max(Axes::kIntensityMin, axes.rate_min / machine.read_gbps);
    const double to = std::min(Axes::kIntensityMax, highest / machine.read_gbps);
    svg += svg_line(axes.x(from), axes.y(from * machine.read_gbps), axes.x(to), axes.y(highest), kReadColour);
    for (const auto& [name, rate] : peaks) {
      svg += svg_line(axes.x(rate / machine.read_gbps), axes.y(rate), kLeft + kWidth, axes.y(rate), kPeakColour);
      svg += svg_text(kLeft + kWidth + 6, axes.y(rate) + 4, "start", name);
    }
    svg += svg_text(axes.x(from) + 4, axes.y(from * machine.read_gbps) - 8, "start",
                    fmt::format("{:.1f} GB/s", machine.read_gbps));
  }
  int number = 0;
  for (const Result& result : suite.results) {
    if (result.skipped) continue;
    ++number;
    if (result.gflops <= 0) continue;
    const double x = axes.x(std::clamp(result.operations_per_byte, Axes::kIntensityMin, Axes::kIntensityMax));
    const double y = axes.y(result.gflops);
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{}: {:.4g} GFLOP/s</title></circle>\n", x, y,
                       result.name, result.gflops);
    svg += svg_text(x + 5, y + (number % 2 == 0 ? -4 : 12), "start", std::to_string(number));
  }
  return svg;
}

/// A bar for each result, from `top` down.
std::string svg_bars(const SuiteResult& suite, int top) {
  std::string svg;
  int number = 0;
  int y = top;
  for (const Result& result : suite.results) {
    if (result.skipped) continue;
    const double length = std::min(result.share, 1.2) * kWidth;
    svg += svg_text(kLeft - 8, y + 15, "end", fmt::format("{}  {}", result.name, ++number));
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{:.0f}\" height=\"{}\" fill=\"{}\"/>\n", kLeft, y + 3, length,
                       kBarHeight - 6, result.limit.ends_with("read_gbps") ? kReadColour : kPeakColour);
    svg += svg_text(kLeft + length + 6, y + 15, "start",
                    fmt::format("{:.2f} ({:.4g} {})", result.share, result.median, result.unit));
    y += kBarHeight;
  }
  return svg + svg_line(kLeft + kWidth, top - 4, kLeft + kWidth, y, "#444") +
         svg_text(kLeft + kWidth, y + 16, "middle", "limit");
}

}  // namespace

std::string to_svg(const SuiteResult& suite) {
  constexpr int kBarsTop = Axes::kTop + Axes::kHeight + 80;
  const Machine& machine = suite.machine;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<title>Roofline of this machine</title>\n",
      kSvgWidth, kBarsTop + static_cast<int>(suite.results.size()) * kBarHeight + 30);
  svg += svg_text(10, 18, "start",
                  fmt::format("{} on {} threads; reads {:.1f} GB/s, {}", machine.isa, machine.threads,
                              machine.read_gbps, peaks_text(machine)));
  svg += svg_roofline(suite);
  svg += svg_text(10, kBarsTop - 14, "start", "Share of the limit that bounds each step");
  return svg + svg_bars(suite, kBarsTop) + "</svg>\n";
}

}  // namespace tidepool::bench
