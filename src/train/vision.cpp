#include "train/vision.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/patch_reader.h"
#include "train/norm.h"
#include "train/swiglu.h"
#include "train/vision_parts.h"

namespace tidepool {

namespace {

/// RMSNorm's epsilon; the text model's is another. (docs/model.md 4.2)
constexpr double kNormEps = 1e-6F;

std::vector<PatchRows> lay_out(std::span<const PreparedImage* const> pictures) {
  std::vector<PatchRows> layout;
  layout.reserve(pictures.size());
  size_t rows = 0;
  for (const PreparedImage* picture : pictures) {
    layout.push_back({.begin = rows,
                      .rows = static_cast<size_t>(picture->plan.patch_rows),
                      .columns = static_cast<size_t>(picture->plan.patch_columns)});
    rows += layout.back().count();
  }
  return layout;
}

/// A pass through the tower.
template <typename Real>
class Tower {
 public:
  Tower(Tape<Real>& tape, const Qat& qat, const VisionParameters<Real>& parameters,
        std::span<const PreparedImage* const> pictures)
      : tape_(tape), qat_(qat), parameters_(parameters), pictures_(pictures), layout_(lay_out(pictures)) {}

  [[nodiscard]] Value<Real> run() const {
    const size_t heads = count(parameters_.config.num_attention_heads);
    Value<Real> x = biased_linear(read_patches(), parameters_.patch_embed);
    const PatchAngles<Real> angles = patch_angles(tape_, layout_, x.cols() / heads, parameters_.config.rope_theta);
    for (const VisionBlockParameters<Real>& block : parameters_.blocks) {
      x = add(tape_, x, attend(block, norm(x, *block.norm1), angles));
      x = add(tape_, x, feed_forward(block, norm(x, *block.norm2)));
    }
    return align(norm(x, *parameters_.norm));
  }

 private:
  static size_t count(int64_t value) { return static_cast<size_t>(value); }

  /// [rows, values of a patch]; the input, which has no gradient.
  [[nodiscard]] Value<Real> read_patches() const {
    const PatchReader reader(count(parameters_.config.patch_size));
    const Value<Real> patches =
        tape_.make_constant(layout_.back().begin + layout_.back().count(), reader.values_per_patch());
    tape_.pool().run(layout_.size(), [&](size_t p, size_t) {
      std::vector<float> values(reader.values_per_patch());
      for (size_t i = 0; i < layout_[p].count(); ++i) {
        reader.read(*pictures_[p], i, values);
        std::ranges::copy(values, patches.data.row(layout_[p].begin + i).begin());
      }
    });
    return patches;
  }

  [[nodiscard]] Value<Real> biased_linear(const Value<Real>& x, const BiasedParameters<Real>& parameters) const {
    const Value<Real> y = linear(tape_, qat_, x, *parameters.weight);
    add_bias_in_place(tape_, y, quantised(tape_, qat_, *parameters.bias));
    return y;
  }

  [[nodiscard]] Value<Real> norm(const Value<Real>& x, const Parameter<Real>& weight) const {
    return rms_norm(tape_, x, quantised(tape_, qat_, weight), static_cast<Real>(kNormEps));
  }

  [[nodiscard]] Value<Real> attend(const VisionBlockParameters<Real>& block, const Value<Real>& x,
                                   const PatchAngles<Real>& angles) const {
    const Value<Real> qkv = biased_linear(x, block.wqkv);
    rotate_halves_in_place(tape_, columns(qkv, 0, 2 * x.cols()), angles);
    return biased_linear(picture_attention(tape_, qkv, layout_, count(parameters_.config.num_attention_heads)),
                         block.wo);
  }

  [[nodiscard]] Value<Real> feed_forward(const VisionBlockParameters<Real>& block, const Value<Real>& x) const {
    const Value<Real> both = linear(tape_, qat_, x, *block.w1);
    const size_t inner = both.cols() / 2;
    const Value<Real> ones = tape_.make_constant(x.rows(), 1);
    std::ranges::fill(std::span(ones.data.data, x.rows()), Real{1});
    const Value<Real> h = swiglu(tape_, columns(both, 0, inner), columns(both, inner, inner), ones, 0);
    return linear(tape_, qat_, h, *block.w2);
  }

  [[nodiscard]] Value<Real> align(const Value<Real>& x) const {
    const size_t side = count(parameters_.config.downsample_ratio);
    const Value<Real> inner = biased_linear(gather_cells(tape_, x, layout_, side), parameters_.aligner_w1);
    const Value<Real> cells = biased_linear(gelu(tape_, inner), parameters_.aligner_w2);
    const SpanMarks<Real> marks = {quantised(tape_, qat_, *parameters_.start),
                                   quantised(tape_, qat_, *parameters_.newline),
                                   quantised(tape_, qat_, *parameters_.end)};
    return join_spans(tape_, cells, layout_, side, marks);
  }

  static Value<Real> columns(const Value<Real>& x, size_t begin, size_t cols) {
    return {x.data.col_range(begin, cols), x.wants_grad() ? x.grad.col_range(begin, cols) : Span2d<Real>()};
  }

  Tape<Real>& tape_;
  const Qat& qat_;
  const VisionParameters<Real>& parameters_;
  std::span<const PreparedImage* const> pictures_;
  std::vector<PatchRows> layout_;
};

}  // namespace

bool is_vision_parameter(std::string_view name) {
  return name.starts_with("vision.") || name.starts_with("aligner.") || name.starts_with("image_");
}

template <typename Real>
VisionParameters<Real> bind_vision(const ParameterSet<Real>& parameters, const ModelConfig& config) {
  const auto biased = [&](const std::string& name) {
    return BiasedParameters<Real>{&parameters.get(name + ".weight"), &parameters.get(name + ".bias")};
  };
  VisionParameters<Real> result;
  result.config = *config.vision;
  result.patch_embed = biased("vision.patch_embed.proj");
  result.blocks.reserve(static_cast<size_t>(result.config.num_hidden_layers));
  for (int64_t i = 0; i < result.config.num_hidden_layers; ++i) {
    const std::string block = fmt::format("vision.blocks.{}.", i);
    result.blocks.push_back({.norm1 = &parameters.get(block + "norm1.weight"),
                             .wqkv = biased(block + "attn.wqkv"),
                             .wo = biased(block + "attn.wo"),
                             .norm2 = &parameters.get(block + "norm2.weight"),
                             .w1 = &parameters.get(block + "mlp.w1.weight"),
                             .w2 = &parameters.get(block + "mlp.w2.weight")});
  }
  result.norm = &parameters.get("vision.norm.weight");
  result.aligner_w1 = biased("aligner.w1");
  result.aligner_w2 = biased("aligner.w2");
  result.start = &parameters.get("image_start");
  result.newline = &parameters.get("image_newline");
  result.end = &parameters.get("image_end");
  return result;
}

template <typename Real>
Value<Real> encode_pictures(Tape<Real>& tape, const Qat& qat, const VisionParameters<Real>& parameters,
                            std::span<const PreparedImage* const> pictures) {
  return Tower<Real>(tape, qat, parameters, pictures).run();
}

#define TIDEPOOL_FOR_REAL(Real)                                                                \
  template VisionParameters<Real> bind_vision(const ParameterSet<Real>&, const ModelConfig&);  \
  template Value<Real> encode_pictures(Tape<Real>&, const Qat&, const VisionParameters<Real>&, \
                                       std::span<const PreparedImage* const>)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
