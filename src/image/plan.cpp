#include "image/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "image/resize.h"

// The arithmetic is that of the reference, in binary64 and in its order: a size that lies on an edge must fall to the
// same side.

namespace tidepool {
namespace {

/// What the border is filled with.
constexpr uint8_t kBorderGrey = 127;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Pixels of the canvas.
struct Canvas {
  int64_t width = 0;
  int64_t height = 0;
};

void count_cells(const ImagePlanConfig& config, const Canvas& canvas, ImagePlan& plan) {
  plan.canvas_width = canvas.width;
  plan.canvas_height = canvas.height;
  plan.patch_columns = canvas.width / config.patch;
  plan.patch_rows = canvas.height / config.patch;
  plan.cell_columns = ceil_div(plan.patch_columns, config.downsample);
  plan.cell_rows = ceil_div(plan.patch_rows, config.downsample);
}

/// The largest canvas of the picture's shape whose cells fit the budget.
Canvas shrink_canvas(const ImagePlanConfig& config, int64_t width, int64_t height) {
  const int64_t cell = config.patch * config.downsample;
  const auto w = static_cast<double>(width);
  const auto h = static_cast<double>(height);
  const double ratio = h / w;
  const auto budget = static_cast<double>(config.tokens_max - 2);
  const double columns = std::sqrt(budget / ratio + 0.25) - 0.5;
  const double rows = columns * ratio;
  if (columns < 1) return {cell, (config.tokens_max - 2) / 2 * cell};
  if (rows < 1) return {(config.tokens_max - 3) * cell, cell};
  const double scale =
      std::min(std::floor(columns) * static_cast<double>(cell) / w, std::floor(rows) * static_cast<double>(cell) / h);
  const auto whole_patches = [&](double side) {
    return static_cast<int64_t>(std::floor(side * scale / static_cast<double>(config.patch))) * config.patch;
  };
  return {whole_patches(w), whole_patches(h)};
}

/// To the nearest integer, ties to the even one.
int64_t round_half_even(double value) {
  const double floor = std::floor(value);
  const double rest = value - floor;
  const auto whole = static_cast<int64_t>(floor);
  if (rest != 0.5) return rest < 0.5 ? whole : whole + 1;
  return whole % 2 == 0 ? whole : whole + 1;
}

/// The largest size of the picture's shape within the canvas, and its place in the middle: the original size counts
/// here, not the one it was scaled up to.
void place_picture(int64_t width, int64_t height, ImagePlan& plan) {
  const auto w = static_cast<double>(width);
  const auto h = static_cast<double>(height);
  const double ratio = w / h;
  const double canvas_ratio = static_cast<double>(plan.canvas_width) / static_cast<double>(plan.canvas_height);
  plan.scaled_width = plan.canvas_width;
  plan.scaled_height = plan.canvas_height;
  if (ratio > canvas_ratio) plan.scaled_height = round_half_even(h / w * static_cast<double>(plan.canvas_width));
  if (ratio < canvas_ratio) plan.scaled_width = round_half_even(w / h * static_cast<double>(plan.canvas_height));
  plan.x = round_half_even(static_cast<double>(plan.canvas_width - plan.scaled_width) * 0.5);
  plan.y = plan.x != 0 ? 0 : round_half_even(static_cast<double>(plan.canvas_height - plan.scaled_height) * 0.5);
}

}  // namespace

ImagePlan plan_image(const ImagePlanConfig& config, int64_t width, int64_t height) {
  TIDEPOOL_CHECK(width >= 1 && height >= 1 && config.patch >= 1 && config.downsample >= 1 && config.tokens_max >= 4,
                 "sizes are positive, and a budget holds one cell");
  int64_t w = width;
  int64_t h = height;
  if (w * h < config.pixels_min) {
    const double scale = std::sqrt(static_cast<double>(config.pixels_min) / static_cast<double>(w * h));
    w = static_cast<int64_t>(static_cast<double>(w) * scale);
    h = static_cast<int64_t>(static_cast<double>(h) * scale);
  }
  ImagePlan plan;
  count_cells(config, {ceil_div(w, config.patch) * config.patch, ceil_div(h, config.patch) * config.patch}, plan);
  if (plan.tokens() > config.tokens_max) count_cells(config, shrink_canvas(config, w, h), plan);
  if (plan.canvas_width > 0 && plan.canvas_height > 0) place_picture(width, height, plan);
  return plan;
}

int64_t image_patches_max(const ImagePlanConfig& config) {
  return (config.tokens_max - 3) * config.downsample * config.downsample;
}

PreparedImage prepare_image(const ImagePlanConfig& config, const RgbImage& image, const std::string& name) {
  PreparedImage prepared;
  prepared.plan = plan_image(config, static_cast<int64_t>(image.width), static_cast<int64_t>(image.height));
  const ImagePlan& plan = prepared.plan;
  if (plan.scaled_width < 1 || plan.scaled_height < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the picture is {} x {}, too narrow for anything of it to be left when it is scaled to "
                            "what the model sees; crop it",
                            name, image.width, image.height));
  }
  const auto size = [](int64_t value) { return static_cast<size_t>(value); };
  RgbImage scaled = resize_bicubic(image, size(plan.scaled_width), size(plan.scaled_height));
  prepared.canvas = place_on_canvas(scaled, size(plan.canvas_width), size(plan.canvas_height), size(plan.x),
                                    size(plan.y), kBorderGrey);
  return prepared;
}

}  // namespace tidepool
