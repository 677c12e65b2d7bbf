#include "image/resize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace tidepool {
namespace {

/// 8 bits of a sample and 2 of headroom, as weights add up to more than 1 in parts, leave so many of 32.
constexpr int kFractionBits = 32 - 8 - 2;
/// The cubic reaches two samples to each side.
constexpr double kSupport = 2.0;

/// The Keys cubic with a = -0.5.
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

/// What one output sample is made of: `count` input samples from `first` on.
struct Window {
  size_t first = 0;
  size_t count = 0;
};

/// The windows of all output samples along one side, and their weights in fixed point.
struct Filter {
  std::vector<Window> windows;
  std::vector<int32_t> weights;  ///< [windows.size(), stride]
  size_t stride = 0;

  [[nodiscard]] const int32_t* weights_of(size_t index) const { return weights.data() + index * stride; }
};

int32_t to_fixed(double weight) {
  const double scaled = weight * (1 << kFractionBits);
  return static_cast<int32_t>(weight < 0 ? scaled - 0.5 : scaled + 0.5);
}

Filter make_filter(size_t in_size, size_t out_size) {
  const double scale = static_cast<double>(in_size) / static_cast<double>(out_size);
  const double stretch = std::max(scale, 1.0);
  const double support = kSupport * stretch;
  Filter filter;
  filter.stride = static_cast<size_t>(std::ceil(support)) * 2 + 1;
  filter.windows.resize(out_size);
  filter.weights.resize(out_size * filter.stride);
  std::vector<double> exact(filter.stride);
  for (size_t i = 0; i < out_size; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first = static_cast<int64_t>(std::floor(std::max(centre - support + 0.5, 0.0)));
    const auto end = std::min(static_cast<int64_t>(std::floor(centre + support + 0.5)), static_cast<int64_t>(in_size));
    const auto count = static_cast<size_t>(end - first);
    double sum = 0;
    for (size_t k = 0; k < count; ++k) {
      exact[k] = cubic((static_cast<double>(first + static_cast<int64_t>(k)) - centre + 0.5) * (1.0 / stretch));
      sum += exact[k];
    }
    filter.windows[i] = {static_cast<size_t>(first), count};
    for (size_t k = 0; k < count; ++k)
      filter.weights[i * filter.stride + k] = to_fixed(sum != 0 ? exact[k] / sum : exact[k]);
  }
  return filter;
}

uint8_t to_sample(int32_t fixed) {
  return static_cast<uint8_t>(std::clamp(fixed >> kFractionBits, 0, 255));
}

constexpr int32_t kHalf = 1 << (kFractionBits - 1);

RgbImage resize_rows(const RgbImage& image, size_t width) {
  const Filter filter = make_filter(image.width, width);
  RgbImage result(width, image.height);
  for (size_t y = 0; y < image.height; ++y) {
    const uint8_t* in = image.row(y).data();
    uint8_t* out = result.row(y).data();
    for (size_t x = 0; x < width; ++x) {
      const Window window = filter.windows[x];
      const int32_t* weights = filter.weights_of(x);
      int32_t sums[RgbImage::kChannels] = {kHalf, kHalf, kHalf};
      for (size_t k = 0; k < window.count; ++k) {
        const uint8_t* pixel = in + (window.first + k) * RgbImage::kChannels;
        for (size_t c = 0; c < RgbImage::kChannels; ++c)
          sums[c] += pixel[c] * weights[k];
      }
      for (size_t c = 0; c < RgbImage::kChannels; ++c)
        out[x * RgbImage::kChannels + c] = to_sample(sums[c]);
    }
  }
  return result;
}

RgbImage resize_columns(const RgbImage& image, size_t height) {
  const Filter filter = make_filter(image.height, height);
  RgbImage result(image.width, height);
  std::vector<int32_t> sums(image.width * RgbImage::kChannels);
  for (size_t y = 0; y < height; ++y) {
    const Window window = filter.windows[y];
    std::ranges::fill(sums, kHalf);
    for (size_t k = 0; k < window.count; ++k) {
      const uint8_t* in = image.row(window.first + k).data();
      const int32_t weight = filter.weights_of(y)[k];
      for (size_t i = 0; i < sums.size(); ++i)
        sums[i] += in[i] * weight;
    }
    std::ranges::transform(sums, result.row(y).begin(), to_sample);
  }
  return result;
}

}  // namespace

RgbImage resize_bicubic(const RgbImage& image, size_t width, size_t height) {
  TIDEPOOL_CHECK(width > 0 && height > 0 && image.width > 0 && image.height > 0, "pictures have pixels");
  if (width == image.width && height == image.height) return image;
  if (width == image.width) return resize_columns(image, height);
  const RgbImage narrowed = resize_rows(image, width);
  return height == image.height ? narrowed : resize_columns(narrowed, height);
}

RgbImage place_on_canvas(const RgbImage& image, size_t width, size_t height, size_t x, size_t y, uint8_t grey) {
  TIDEPOOL_CHECK(x + image.width <= width && y + image.height <= height, "the picture fits its canvas");
  RgbImage canvas(width, height, grey);
  for (size_t row = 0; row < image.height; ++row) {
    std::ranges::copy(image.row(row), canvas.row(y + row).begin() + static_cast<ptrdiff_t>(x * RgbImage::kChannels));
  }
  return canvas;
}

}  // namespace tidepool
