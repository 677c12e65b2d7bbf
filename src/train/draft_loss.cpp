#include "train/draft_loss.h"

#include <cmath>
#include <vector>

#include "base/check.h"
#include "train/row_blocks.h"
#include "train/vector_math.h"

namespace tidepool {

namespace {

// The published weights of the three parts.
constexpr double kCrossEntropyWeight = 0.1;
constexpr double kDistanceWeight = 0.9;
constexpr double kConfidenceWeight = 1.0;

/// softmax(x) in place; returns log sum e^x.
template <typename Real>
double softmax(const Tape<Real>& tape, std::span<Real> x) {
  const auto [sum, largest] = softmax_terms(tape, x);
  const Real factor = static_cast<Real>(1 / static_cast<double>(sum));
  for (Real& value : x)
    value *= factor;
  return std::log(static_cast<double>(sum)) + static_cast<double>(largest);
}

/// log(1 + e^x), whatever x is.
double softplus(double x) {
  return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
}

/// One row. `p` holds its logits and becomes their gradient, `target` the backbone's logits, which are overwritten.
template <typename Real>
DraftLoss row_loss(const Tape<Real>& tape, std::span<Real> p, std::span<Real> target, size_t id, Real confidence,
                   Real& confidence_gradient) {
  DraftLoss loss;
  const double id_logit = static_cast<double>(p[id]);
  loss.cross_entropy = softmax(tape, p) - id_logit;
  (void)softmax(tape, target);
  // d|p - t|_1 / dlogit_i = p_i (s_i - sum_j p_j s_j) with s = sign(p - t).
  double distance = 0;
  double along = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double difference = static_cast<double>(p[i]) - static_cast<double>(target[i]);
    distance += std::fabs(difference);
    along += difference < 0 ? -static_cast<double>(p[i]) : static_cast<double>(p[i]);
  }
  loss.distance = distance;
  const double accepted = 1 - distance / 2;
  const double logit = static_cast<double>(confidence);
  loss.confidence = softplus(logit) - accepted * logit;
  confidence_gradient = static_cast<Real>(kConfidenceWeight * (1 / (1 + std::exp(-logit)) - accepted));
  for (size_t i = 0; i < p.size(); ++i) {
    const double sign = p[i] < target[i] ? -1 : 1;
    p[i] *= static_cast<Real>(kCrossEntropyWeight + kDistanceWeight * (sign - along));
  }
  p[id] -= static_cast<Real>(kCrossEntropyWeight);
  loss.total =
      kCrossEntropyWeight * loss.cross_entropy + kDistanceWeight * loss.distance + kConfidenceWeight * loss.confidence;
  return loss;
}

}  // namespace

template <typename Real>
DraftLoss draft_loss(Tape<Real>& tape, const Value<Real>& logits, const Value<Real>& confidence,
                     const DraftTargets<Real>& targets) {
  const size_t rows = logits.rows();
  TIDEPOOL_CHECK(targets.logits.rows == rows && targets.ids.size() == rows && targets.weights.size() == rows &&
                     confidence.rows() == rows,
                 "a target for each row");
  const Span2d<Real> gradients = tape.make_constant(rows, logits.cols()).data;
  const std::span<Real> confidence_gradients = tape.template keep<Real>(rows);
  std::vector<DraftLoss> losses(rows);
  constexpr size_t kOperations = 40;
  for_row_blocks(tape, rows, kOperations * logits.cols(), [&](size_t begin, size_t end) {
    std::vector<Real> target(logits.cols());
    for (size_t row = begin; row < end; ++row) {
      std::ranges::copy(logits.data.row(row), gradients.row(row).begin());
      std::ranges::copy(targets.logits.row(row), target.begin());
      losses[row] = row_loss<Real>(tape, gradients.row(row), target, static_cast<size_t>(targets.ids[row]),
                                   confidence.data.at(row, 0), confidence_gradients[row]);
    }
  });
  DraftLoss sum;
  for (size_t row = 0; row < rows; ++row) {
    const double weight = targets.weights[row];
    sum.total += weight * losses[row].total;
    sum.cross_entropy += weight * losses[row].cross_entropy;
    sum.distance += weight * losses[row].distance;
    sum.confidence += weight * losses[row].confidence;
    sum.weight += weight;
  }
  const std::vector<double> weights(targets.weights.begin(), targets.weights.end());
  tape.on_backward([logits, confidence, gradients, confidence_gradients, weights] {
    for (size_t row = 0; row < weights.size(); ++row) {
      const auto weight = static_cast<Real>(weights[row]);
      if (logits.wants_grad()) add_scaled<Real>(logits.grad.row(row), weight, gradients.row(row));
      if (confidence.wants_grad()) confidence.grad.at(row, 0) += weight * confidence_gradients[row];
    }
  });
  return sum;
}

template DraftLoss draft_loss(Tape<float>&, const Value<float>&, const Value<float>&, const DraftTargets<float>&);
template DraftLoss draft_loss(Tape<double>&, const Value<double>&, const Value<double>&, const DraftTargets<double>&);

}  // namespace tidepool
