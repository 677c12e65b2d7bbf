#include "model/vision.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/error.h"
#include "model/patch_reader.h"
#include "model/vision_internal.h"

namespace tidepool {
namespace vision {

void biased_linear(const Math& math, const BiasedLinear& linear, Span2d<const float> x, Span2d<float> y) {
  math.linear_unrounded(linear.weight, x, y);
  math.for_rows(y.rows, [&](size_t row, size_t) {
    const std::span<float> values = y.row(row);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] += to_float(linear.bias[i]);
    math.round(values);
  });
}

void add_rows(const Math& math, Span2d<const float> y, Span2d<float> x) {
  math.for_rows(x.rows, [&](size_t row, size_t) {
    const std::span<float> values = x.row(row);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] += y.row(row)[i];
    math.round(values);
  });
}

namespace {

float gelu(float x) {
  return 0.5F * x * (1.0F + std::erf(x * (1.0F / std::numbers::sqrt2_v<float>)));
}

/// The tower at work on some pictures.
class Tower {
 public:
  Tower(const Model& model, const Math& math, Probe* probe)
      : config_(*model.config().vision),
        weights_(*model.weights().vision),
        math_(math),
        probe_(probe),
        hidden_(model.pass_shape().hidden),
        fault_(model.options().faults.image) {
    shape_.width = static_cast<size_t>(config_.hidden_size);
    shape_.heads = static_cast<size_t>(config_.num_attention_heads);
    shape_.inner = static_cast<size_t>(config_.intermediate_size);
    shape_.rope_theta = config_.rope_theta;
    ones_.assign(shape_.inner, 1.0F);
  }

  std::vector<VisionFeatures> run(std::span<const PreparedImage* const> images) {
    const std::vector<PictureRows> pictures = lay_out(images);
    const Span2d<float> x = embed_patches(images, pictures);
    record("vit_embed", -1, x);
    TowerAttention attention(math_, arena_, shape_, pictures);
    for (size_t block = 0; block < weights_.blocks.size(); ++block) {
      attention.run(weights_.blocks[block], x);
      feed_forward(weights_.blocks[block], x);
      record("vit_block", static_cast<int64_t>(block), x);
    }
    math_.rms_norm_rows(x, weights_.norm, kNormEps, x);
    record("vit_out", -1, x);
    std::vector<VisionFeatures> features;
    for (size_t i = 0; i < images.size(); ++i)
      features.push_back(align(images[i]->plan, x.row_range(pictures[i].begin, pictures[i].count())));
    return features;
  }

 private:
  static std::vector<PictureRows> lay_out(std::span<const PreparedImage* const> images) {
    std::vector<PictureRows> pictures;
    size_t rows = 0;
    for (const PreparedImage* image : images) {
      pictures.push_back(
          {rows, static_cast<size_t>(image->plan.patch_rows), static_cast<size_t>(image->plan.patch_columns)});
      rows += pictures.back().count();
    }
    return pictures;
  }

  void record(std::string_view name, int64_t block, Span2d<const float> values) const {
    if (probe_ != nullptr) probe_->record(name, block, 0, values);
  }

  Span2d<float> embed_patches(std::span<const PreparedImage* const> images, std::span<const PictureRows> pictures) {
    const size_t rows = pictures.back().begin + pictures.back().count();
    const PatchReader reader(static_cast<size_t>(config_.patch_size));
    const Span2d<float> x = arena_.matrix(rows, shape_.width);
    for (size_t i = 0; i < images.size(); ++i) {
      const Arena::Scope scope(arena_);
      const PictureRows& picture = pictures[i];
      const Span2d<float> patches = arena_.matrix(picture.count(), weights_.patch_embed.weight.in);
      math_.for_rows(picture.count(), [&](size_t p, size_t) { reader.read(*images[i], p, patches.row(p)); });
      record("patches", -1, patches);
      biased_linear(math_, weights_.patch_embed, patches, x.row_range(picture.begin, picture.count()));
    }
    return x;
  }

  /// x += w2 (silu(gate) * up), gate and up being the halves of w1 norm2(x).
  void feed_forward(const VisionBlockWeights& weights, Span2d<float> x) {
    for (size_t begin = 0; begin < x.rows; begin += kChunkRows) {
      const Arena::Scope scope(arena_);
      const Span2d<float> rows = x.row_range(begin, std::min(kChunkRows, x.rows - begin));
      const Span2d<float> normed = arena_.matrix(rows.rows, shape_.width);
      math_.rms_norm_rows(rows, weights.norm2, kNormEps, normed);
      const Span2d<float> both = arena_.matrix(rows.rows, 2 * shape_.inner);
      math_.linear_unrounded(weights.w1, normed, both);
      math_.for_rows(rows.rows, [&](size_t row, size_t) {
        float* gate = both.row(row).data();
        math_.round(both.row(row));
        // silu, which has a rounding point of its own here, then the product.
        math_.kernels().swiglu(gate, ones_.data(), shape_.inner, 0, 1, gate);
        math_.round(both.row(row).first(shape_.inner));
        for (size_t i = 0; i < shape_.inner; ++i)
          gate[i] *= gate[shape_.inner + i];
        math_.round(both.row(row).first(shape_.inner));
      });
      math_.linear_unrounded(weights.w2, both.col_range(0, shape_.inner), normed);
      math_.for_rows(rows.rows, [&](size_t row, size_t) { math_.round(normed.row(row)); });
      add_rows(math_, normed, rows);
    }
  }

  /// The patches of one cell as one vector, channel by channel, those of a channel row by row; zeros where the grid of
  /// patches ends inside the cell.
  void gather_cell(const ImagePlan& plan, Span2d<const float> patches, size_t cell, std::span<float> out) const {
    const auto side = static_cast<size_t>(config_.downsample_ratio);
    const auto columns = static_cast<size_t>(plan.patch_columns);
    const size_t first_row = cell / static_cast<size_t>(plan.cell_columns) * side;
    const size_t first_column = cell % static_cast<size_t>(plan.cell_columns) * side;
    std::ranges::fill(out, 0.0F);
    for (size_t i = 0; i < side * side; ++i) {
      const size_t row = first_row + i / side;
      const size_t column = first_column + i % side;
      if (row >= static_cast<size_t>(plan.patch_rows) || column >= columns) continue;
      const std::span<const float> patch = patches.row(row * columns + column);
      for (size_t c = 0; c < patch.size(); ++c)
        out[fault_ == ImageFault::kPatchMajorCell ? i * patch.size() + c : c * side * side + i] = patch[c];
    }
  }

  VisionFeatures align(const ImagePlan& plan, Span2d<const float> patches) {
    const Arena::Scope scope(arena_);
    const auto cells = static_cast<size_t>(plan.cell_rows * plan.cell_columns);
    const Span2d<float> gathered = arena_.matrix(cells, weights_.aligner_w1.weight.in);
    math_.for_rows(cells, [&](size_t cell, size_t) { gather_cell(plan, patches, cell, gathered.row(cell)); });
    const Span2d<float> inner = arena_.matrix(cells, hidden_);
    biased_linear(math_, weights_.aligner_w1, gathered, inner);
    math_.for_rows(cells, [&](size_t cell, size_t) {
      std::ranges::transform(inner.row(cell), inner.row(cell).begin(), gelu);
      math_.round(inner.row(cell));
    });
    const Span2d<float> out = arena_.matrix(cells, hidden_);
    biased_linear(math_, weights_.aligner_w2, inner, out);
    record("aligner_out", -1, out);
    return make_span(plan, out);
  }

  /// START, then per row of cells their features and NEWLINE, then END.
  VisionFeatures make_span(const ImagePlan& plan, Span2d<const float> cells) const {
    VisionFeatures features{static_cast<size_t>(plan.tokens()), hidden_, {}};
    features.values = Buffer<float>(features.tokens * hidden_);
    const Span2d<float> rows(features.values.data(), features.tokens, hidden_);
    size_t next = 0;
    const auto put_learned = [&](const Bf16* embedding) {
      for (size_t i = 0; i < hidden_; ++i)
        rows.row(next)[i] = to_float(embedding[i]);
      ++next;
    };
    put_learned(weights_.start);
    for (size_t cell = 0; cell < cells.rows; ++cell) {
      std::ranges::copy(cells.row(cell), rows.row(next++).begin());
      if ((cell + 1) % static_cast<size_t>(plan.cell_columns) == 0) put_learned(weights_.newline);
    }
    put_learned(weights_.end);
    TIDEPOOL_CHECK(next == features.tokens, "a span has the planned number of positions");
    return features;
  }

  const VisionConfig& config_;
  const VisionWeights& weights_;
  const Math& math_;
  Probe* probe_;
  size_t hidden_;
  ImageFault fault_;
  TowerShape shape_;
  std::vector<float> ones_;  ///< [inner], what silu alone is multiplied with
  Arena arena_;              ///< its own, so that the memory of a rare use is given back
};

}  // namespace
}  // namespace vision

ImagePlanConfig image_plan_config(const VisionConfig& config) {
  if (config.max_wh_ratio) {
    throw Error(ErrorCode::kUnsupported,
                "config.json: /vision_config/max_wh_ratio is set; this program reads images for models without such a "
                "limit only (the released one has null)");
  }
  return {config.patch_size, config.downsample_ratio, config.max_image_tokens, config.min_pixels};
}

std::vector<VisionFeatures> encode_images(const Model& model, const Runtime& runtime,
                                          std::span<const PreparedImage* const> images, Probe* probe) {
  TIDEPOOL_CHECK(model.weights().vision.has_value(), "images are refused where they come in when nothing can see them");
  TIDEPOOL_CHECK(probe == nullptr || images.size() == 1, "a probe follows one picture");
  const Math math(runtime, model.options().numerics);
  const int64_t patches_max = image_patches_max(image_plan_config(*model.config().vision));
  std::vector<VisionFeatures> features;
  for (size_t begin = 0; begin < images.size();) {
    size_t end = begin;
    for (int64_t patches = 0; end < images.size(); ++end) {
      patches += images[end]->plan.patches();
      if (end > begin && patches > patches_max) break;
    }
    for (VisionFeatures& one : vision::Tower(model, math, probe).run(images.subspan(begin, end - begin)))
      features.push_back(std::move(one));
    begin = end;
  }
  return features;
}

}  // namespace tidepool
