#include <fmt/format.h>

#include <algorithm>
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

std::string to_svg(const SuiteResult& suite) {
  constexpr int kBarHeight = 22;
  constexpr int kLeft = 190;
  constexpr int kWidth = 520;  // of the full limit
  const auto height = static_cast<int>(suite.results.size()) * kBarHeight + 70;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<title>Share of this machine's limits</title>\n<text x=\"10\" y=\"18\">Share of the limit "
      "that "
      "bounds each step: {} on {} threads; reads {:.1f} GB/s, {}</text>\n",
      kLeft + kWidth + 150, height, suite.machine.isa, suite.machine.threads, suite.machine.read_gbps,
      peaks_text(suite.machine));
  int y = 34;
  for (const Result& result : suite.results) {
    if (result.skipped) continue;
    const double share = std::min(result.share, 1.2);
    const char* colour = result.limit == "read_gbps" ? "#3b7dd8" : "#d8873b";
    svg += fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><rect x=\"{}\" y=\"{}\" width=\"{:.0f}\" height=\"{}\" "
        "fill=\"{}\"/><text x=\"{:.0f}\" y=\"{}\">{:.2f} ({:.4g} {})</text>\n",
        kLeft - 8, y + 15, result.name, kLeft, y + 3, share * kWidth, kBarHeight - 6, colour,
        kLeft + share * kWidth + 6, y + 15, result.share, result.median, result.unit);
    y += kBarHeight;
  }
  svg += fmt::format(
      "<line x1=\"{0}\" y1=\"30\" x2=\"{0}\" y2=\"{1}\" stroke=\"#444\"/><text x=\"{0}\" y=\"{2}\" "
      "text-anchor=\"middle\">limit</text>\n</svg>\n",
      kLeft + kWidth, y, y + 16);
  return svg;
}

}  // namespace tidepool::bench
