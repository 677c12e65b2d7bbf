#include "model/embedding.h"

#include <algorithm>

#include "base/check.h"

namespace tidepool {

void embed_row(const Model& model, int32_t id, std::span<float> stream, std::span<float> pre_mix) {
  const size_t hidden = model.pass_shape().hidden;
  const MatrixView& table = model.weights().embed;
  const auto row = static_cast<size_t>(id);
  TIDEPOOL_CHECK(row < table.out, "token ids are checked where they come in");
  const auto* embedding = reinterpret_cast<const Bf16*>(table.data) + row * hidden;
  for (size_t i = 0; i < hidden; ++i)
    stream[i] = to_float(embedding[i]);
  for (size_t j = 1; j < model.pass_shape().streams; ++j)
    std::copy_n(stream.begin(), hidden, stream.begin() + static_cast<int64_t>(j * hidden));
  std::ranges::fill(pre_mix, 0.0F);
  pre_mix[0] = 1.0F;
}

void embed_tokens(const Model& model, const Math& math, const ForwardPass& pass) {
  const size_t hidden = model.pass_shape().hidden;
  math.for_rows(pass.rows, [&](size_t row, size_t) {
    embed_row(model, pass.token(row).id, pass.stream.row(row), pass.pre_mix.row(row));
  });
  if (pass.probe != nullptr) {
    pass.probe->record("embed", -1, pass.segments.front().position, pass.stream.col_range(0, hidden));
  }
}

}  // namespace tidepool
