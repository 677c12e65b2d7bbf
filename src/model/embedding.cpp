#include "model/embedding.h"

#include <algorithm>

#include "base/check.h"

namespace tidepool {
namespace {

/// Copies the embedding in stream 0 to the others, and makes the first mix.
void start_row(const Model& model, std::span<float> stream, std::span<float> pre_mix) {
  const size_t hidden = model.pass_shape().hidden;
  for (size_t j = 1; j < model.pass_shape().streams; ++j)
    std::copy_n(stream.begin(), hidden, stream.begin() + static_cast<int64_t>(j * hidden));
  std::ranges::fill(pre_mix, 0.0F);
  pre_mix[0] = 1.0F;
}

/// The embedding of an image position.
std::span<const float> image_row(const ForwardPass& pass, size_t row) {
  const int64_t position = pass.position(row);
  for (const ImageRows& image : pass.segment(row).images) {
    const int64_t offset = position - image.begin;
    if (offset >= 0 && offset < static_cast<int64_t>(image.rows.rows))
      return image.rows.row(static_cast<size_t>(offset));
  }
  TIDEPOOL_CHECK(false, "whoever puts image positions into a pass brings their embeddings");
  return {};
}

}  // namespace

void embed_row(const Model& model, int32_t id, std::span<float> stream, std::span<float> pre_mix) {
  const size_t hidden = model.pass_shape().hidden;
  const MatrixView& table = model.weights().embed;
  const auto row = static_cast<size_t>(id);
  TIDEPOOL_CHECK(row < table.out, "token ids are checked where they come in");
  const auto* embedding = reinterpret_cast<const Bf16*>(table.data) + row * hidden;
  for (size_t i = 0; i < hidden; ++i)
    stream[i] = to_float(embedding[i]);
  start_row(model, stream, pre_mix);
}

void embed_row(const Model& model, std::span<const float> embedding, std::span<float> stream,
               std::span<float> pre_mix) {
  std::ranges::copy(embedding, stream.begin());
  start_row(model, stream, pre_mix);
}

void embed_tokens(const Model& model, const Math& math, const ForwardPass& pass) {
  const size_t hidden = model.pass_shape().hidden;
  math.for_rows(pass.rows, [&](size_t row, size_t) {
    const InputToken token = pass.token(row);
    if (token.is_image) {
      embed_row(model, image_row(pass, row), pass.stream.row(row), pass.pre_mix.row(row));
    } else {
      embed_row(model, token.id, pass.stream.row(row), pass.pre_mix.row(row));
    }
  });
  if (pass.probe != nullptr) {
    pass.probe->record("embed", -1, pass.segments.front().position, pass.stream.col_range(0, hidden));
  }
}

}  // namespace tidepool
