#include "model/embedding.h"

#include <algorithm>

#include "base/check.h"

namespace tidepool {

void embed_tokens(const Model& model, const Math& math, const ForwardPass& pass) {
  const size_t hidden = model.pass_shape().hidden;
  const MatrixView& table = model.weights().embed;
  math.for_rows(pass.rows, [&](size_t row, size_t) {
    const auto id = static_cast<size_t>(pass.token(row).id);
    TIDEPOOL_CHECK(id < table.out, "token ids are checked where they come in");
    const auto* embedding = reinterpret_cast<const Bf16*>(table.data) + id * hidden;
    const std::span<float> stream = pass.stream.row(row);
    for (size_t i = 0; i < hidden; ++i)
      stream[i] = to_float(embedding[i]);
    for (size_t j = 1; j < model.pass_shape().streams; ++j) {
      std::copy_n(stream.begin(), hidden, stream.begin() + static_cast<int64_t>(j * hidden));
    }
    std::ranges::fill(pass.pre_mix.row(row), 0.0F);
    pass.pre_mix.row(row)[0] = 1.0F;
  });
  if (pass.probe != nullptr) {
    pass.probe->record("embed", -1, pass.segments.front().position, pass.stream.col_range(0, hidden));
  }
}

}  // namespace tidepool
