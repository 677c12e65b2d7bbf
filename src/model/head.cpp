#include "model/head.h"

#include <algorithm>

namespace tidepool {

void compute_logits(const Model& model, const Math& math, const ForwardPass& pass, std::span<const size_t> rows,
                    Span2d<float> logits) {
  if (rows.empty()) return;
  const Arena::Scope scope(*pass.arena);
  const PassShape& shape = model.pass_shape();
  const Span2d<float> stream = pass.arena->matrix(rows.size(), pass.stream.cols);
  const Span2d<float> mix = pass.arena->matrix(rows.size(), shape.streams);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::ranges::copy(pass.stream.row(rows[i]), stream.row(i).begin());
    std::ranges::copy(pass.pre_mix.row(rows[i]), mix.row(i).begin());
  }
  const Span2d<float> x = pass.arena->matrix(rows.size(), shape.hidden);
  collapse_streams(math, model.hyper_connection(), stream, mix, x);
  math.rms_norm_rows(x, model.weights().norm, model.norm_eps(), x);
  if (pass.probe != nullptr) pass.probe->record("final_norm", -1, pass.position(rows.front()), x);
  math.linear_unrounded(model.weights().head, x, logits);
}

}  // namespace tidepool
