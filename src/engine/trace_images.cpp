#include "engine/trace_images.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "engine/trace_input.h"
#include "image/decode.h"

namespace tidepool {
namespace {

/// Kinds of position, as `token_types` has them.
constexpr int64_t kTextType = -1;
constexpr int64_t kStartType = 0;
constexpr int64_t kImageType = 1;
constexpr int64_t kNewlineType = 2;
constexpr int64_t kEndType = 3;

RgbImage read_rgb(const SafetensorsFile& test_case, const std::string& name) {
  const TensorView tensor = test_case.tensor(name);
  const std::vector<int64_t>& shape = tensor.shape;
  const auto side_max = static_cast<int64_t>(ImageLimits{}.side_max);
  const bool fits = tensor.dtype == Dtype::kU8 && shape.size() == 3 && shape[2] == RgbImage::kChannels &&
                    std::min(shape[0], shape[1]) >= 1 && std::max(shape[0], shape[1]) <= side_max &&
                    static_cast<uint64_t>(shape[0] * shape[1]) <= ImageLimits{}.pixels_max;
  if (!fits) {
    refuse_case(
        test_case, ErrorCode::kInvalidArgument,
        fmt::format("tensor {} is no picture; U8 [height, width, 3] of at most {} a side and {} pixels expected", name,
                    side_max, ImageLimits{}.pixels_max));
  }
  RgbImage image(static_cast<size_t>(shape[1]), static_cast<size_t>(shape[0]));
  std::memcpy(image.pixels.data(), tensor.data, tensor.bytes);
  return image;
}

/// The types of the positions that a picture of this plan takes.
std::vector<int64_t> span_types(const ImagePlan& plan) {
  std::vector<int64_t> types{kStartType};
  for (int64_t row = 0; row < plan.cell_rows; ++row) {
    types.insert(types.end(), static_cast<size_t>(plan.cell_columns), kImageType);
    types.push_back(kNewlineType);
  }
  types.push_back(kEndType);
  return types;
}

/// The case's plan and canvas of a picture, and the patches that the tower reads, under the golden vectors' names.
void record_plan(const TraceImage& image, TraceRecorder& recorder) {
  const ImagePlan& plan = image.prepared.plan;
  const auto record = [&](std::string_view name, std::span<const int64_t> values) {
    for (size_t i = 0; i < values.size(); ++i)
      recorder.record_ints(name, -1, static_cast<int64_t>(i), values.subspan(i, 1));
  };
  record("geometry", std::array{plan.scaled_width, plan.scaled_height, plan.x, plan.y});
  record("grid", std::array{plan.patch_rows, plan.patch_columns, plan.cell_rows, plan.cell_columns});
  record("start", std::array{image.start});
  const RgbImage& canvas = image.prepared.canvas;
  for (size_t y = 0; y < canvas.height; ++y) {
    const std::span<const uint8_t> row = canvas.row(y);
    recorder.record_ints("padded_rgb", -1, static_cast<int64_t>(y), std::vector<int64_t>(row.begin(), row.end()));
  }
}

}  // namespace

std::vector<TraceImage> read_trace_images(const SafetensorsFile& test_case, const ModelConfig& config,
                                          std::span<InputToken> tokens) {
  if (!config.vision) {
    refuse_case(test_case, ErrorCode::kUnsupported, "an image case, but this model has no vision tower");
  }
  const std::vector<int64_t> types = read_trace_ints(test_case, "token_types");
  if (types.size() != tokens.size()) {
    refuse_case(test_case, ErrorCode::kInvalidArgument,
                fmt::format("token_types has {} values for {} tokens", types.size(), tokens.size()));
  }
  std::vector<TraceImage> images;
  for (size_t at = 0; at < types.size();) {
    if (types[at] == kTextType) {
      ++at;
      continue;
    }
    const std::string name = fmt::format("img{}.rgb", images.size());
    if (test_case.find(name) == nullptr) {
      refuse_case(test_case, ErrorCode::kInvalidArgument,
                  fmt::format("token_types has a picture at position {}, but there is no {}", at, name));
    }
    const std::string label = fmt::format("{}: {}", test_case.path().string(), name);
    TraceImage image{static_cast<int64_t>(at),
                     prepare_image(image_plan_config(*config.vision), read_rgb(test_case, name), label)};
    const std::vector<int64_t> span = span_types(image.prepared.plan);
    if (types.size() - at < span.size() || !std::equal(span.begin(), span.end(), types.begin() + std::ptrdiff_t(at))) {
      refuse_case(test_case, ErrorCode::kInvalidArgument,
                  fmt::format("token_types at position {} are not the span of {}: {} rows of {} cells, {} positions",
                              at, name, image.prepared.plan.cell_rows, image.prepared.plan.cell_columns, span.size()));
    }
    for (size_t i = 0; i < span.size(); ++i)
      tokens[at + i].is_image = true;
    at += span.size();
    images.push_back(std::move(image));
  }
  if (const std::string spare = fmt::format("img{}.rgb", images.size()); test_case.find(spare) != nullptr) {
    refuse_case(test_case, ErrorCode::kInvalidArgument, fmt::format("token_types has no place for {}", spare));
  }
  return images;
}

TraceImageRows::TraceImageRows(const Model& model, const Runtime& runtime, std::span<const TraceImage> images,
                               std::span<TraceRecorder> recorders) {
  for (size_t i = 0; i < images.size(); ++i) {
    record_plan(images[i], recorders[i]);
    const PreparedImage* prepared = &images[i].prepared;
    features_.push_back(std::move(encode_images(model, runtime, {&prepared, 1}, &recorders[i]).front()));
  }
  for (size_t i = 0; i < images.size(); ++i)
    rows_.push_back({images[i].start, features_[i].rows()});
}

std::span<const ImageRows> TraceImageRows::rows(int64_t begin, int64_t end) {
  const auto first = std::ranges::find_if(
      rows_, [&](const ImageRows& image) { return image.begin + static_cast<int64_t>(image.rows.rows) > begin; });
  const auto behind = std::find_if(first, rows_.end(), [&](const ImageRows& image) { return image.begin >= end; });
  return {first, behind};
}

}  // namespace tidepool
