#include "train/output_head.h"

#include <vector>

#include "base/check.h"
#include "train/matmul.h"
#include "train/row_blocks.h"
#include "train/vector_math.h"

namespace tidepool {

namespace {

/// What a chunk of rows is computed in.
template <typename Real>
struct HeadChunk {
  std::span<const size_t> rows;  ///< in the batch
  Span2d<Real> x;                ///< gathered
  Span2d<Real> logits;           ///< then their gradients
  Span2d<Real> dx;
};

/// Logits become their gradients, (softmax - one-hot) * weight; losses are written.
template <typename Real>
void take_loss(const Tape<Real>& tape, const HeadChunk<Real>& chunk, const PredictionTargets& targets,
               std::span<Real> row_losses) {
  constexpr size_t kOperations = 10;
  for_row_blocks(tape, chunk.rows.size(), kOperations * chunk.logits.cols, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t row = chunk.rows[i];
      const std::span<Real> logits = chunk.logits.row(i);
      const auto target = static_cast<size_t>(targets.ids[row]);
      TIDEPOOL_CHECK(target < logits.size(), "token ids are checked where they come in");
      const Real target_logit = logits[target];
      const auto [sum, largest] = softmax_terms(tape, logits);
      row_losses[row] = static_cast<Real>(std::log(sum) + largest) - target_logit;
      const Real weight = static_cast<Real>(targets.weights[row]);
      const Real factor = weight / static_cast<Real>(sum);
      for (Real& value : logits)
        value *= factor;
      logits[target] -= weight;
    }
  });
}

template <typename Real>
std::vector<size_t> weighted_rows(const Value<Real>& x, const PredictionTargets& targets) {
  TIDEPOOL_CHECK(targets.ids.size() == x.rows() && targets.weights.size() == x.rows(), "a target for each row");
  std::vector<size_t> rows;
  rows.reserve(x.rows());
  for (size_t row = 0; row < x.rows(); ++row) {
    if (targets.weights[row] != 0) rows.push_back(row);
  }
  return rows;
}

}  // namespace

template <typename Real>
CrossEntropy<Real> cross_entropy(Tape<Real>& tape, const Value<Real>& x, const Value<Real>& head,
                                 const PredictionTargets& targets) {
  const std::vector<size_t> rows = weighted_rows(x, targets);
  const std::span<Real> row_losses = tape.template keep<Real>(x.rows());
  std::ranges::fill(row_losses, Real{0});
  const size_t most = std::min(rows.size(), kHeadRows);
  const Span2d<Real> gathered = tape.make_constant(most, x.cols()).data;
  const Span2d<Real> logits = tape.make_constant(most, head.rows()).data;
  const bool wants_dx = tape.is_training() && x.wants_grad();
  const Span2d<Real> dx = wants_dx ? tape.make_constant(rows.size(), x.cols()).data : Span2d<Real>();
  for (size_t begin = 0; begin < rows.size(); begin += kHeadRows) {
    const size_t count = std::min(kHeadRows, rows.size() - begin);
    const HeadChunk<Real> chunk = {std::span(rows).subspan(begin, count), gathered.row_range(0, count),
                                   logits.row_range(0, count), wants_dx ? dx.row_range(begin, count) : Span2d<Real>()};
    for (size_t i = 0; i < count; ++i)
      std::ranges::copy(x.data.row(chunk.rows[i]), chunk.x.row(i).begin());
    matmul(tape, {chunk.x, transposed(head.data), chunk.logits});
    take_loss(tape, chunk, targets, row_losses);
    if (wants_dx) matmul(tape, {chunk.logits, head.data, chunk.dx});
    if (tape.is_training() && head.wants_grad())
      matmul(tape, {transposed(chunk.logits), chunk.x, head.grad, Into::kAdd});
  }
  double loss = 0;
  for (const size_t row : rows)
    loss += static_cast<double>(row_losses[row]) * static_cast<double>(targets.weights[row]);
  if (wants_dx) {
    tape.on_backward([x, dx, rows] {
      for (size_t i = 0; i < rows.size(); ++i)
        add_scaled<Real>(x.grad.row(rows[i]), 1, dx.row(i));
    });
  }
  return {loss, row_losses};
}

template CrossEntropy<float> cross_entropy(Tape<float>&, const Value<float>&, const Value<float>&,
                                           const PredictionTargets&);
template CrossEntropy<double> cross_entropy(Tape<double>&, const Value<double>&, const Value<double>&,
                                            const PredictionTargets&);

}  // namespace tidepool
