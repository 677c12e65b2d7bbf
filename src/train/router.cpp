#include "train/router.h"

#include <cmath>
#include <numeric>

#include "train/row_blocks.h"
#include "train/vector_math.h"

namespace tidepool {

namespace {

/// As the engine: above 20 softplus equals its argument in binary32.
template <typename Real>
Real softplus(Real x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

template <typename Real>
Value<Real> router_scores(Tape<Real>& tape, const Value<Real>& logits) {
  const Value<Real> scores = tape.make(logits.rows(), logits.cols());
  constexpr size_t kOperations = 40;
  for_row_blocks(tape, logits.rows(), kOperations * logits.cols(), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      std::ranges::transform(logits.data.row(row), scores.data.row(row).begin(),
                             [](Real x) { return std::sqrt(softplus(x)); });
  });
  tape.on_backward([&tape, logits, scores] {
    for_row_blocks(tape, logits.rows(), kOperations * logits.cols(), [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row) {
        for (size_t i = 0; i < logits.cols(); ++i) {
          const Real score = scores.data.at(row, i);
          if (score == 0) continue;  // so far below that binary32 has no number for it: flat
          logits.grad.at(row, i) += scores.grad.at(row, i) * sigmoid(logits.data.at(row, i)) / (2 * score);
        }
      }
    });
  });
  return scores;
}

/// Chooses with the engine's own function, in binary32.
template <typename Real>
void choose(const MoeTraining& training, const MoeParameters<Real>& parameters, const Routing<Real>& routing,
            const MoeRows& rows, std::span<int32_t> chosen) {
  const size_t experts = routing.scores.cols();
  std::vector<float> scores(experts);
  std::vector<float> text_bias(experts);
  std::vector<float> image_bias(experts);
  std::vector<float> weights(routing.k);
  std::ranges::copy(parameters.bias->value.data.row(0), text_bias.begin());
  if (parameters.bias_vl != nullptr) std::ranges::copy(parameters.bias_vl->value.data.row(0), image_bias.begin());
  for (size_t row = 0; row < routing.scores.rows(); ++row) {
    std::ranges::copy(routing.scores.data.row(row), scores.begin());
    const bool is_image = parameters.bias_vl != nullptr && !rows.is_image.empty() && rows.is_image[row] != 0;
    const std::vector<float>& bias = is_image ? image_bias : text_bias;
    (void)route_row(training.config, scores, bias.data(), chosen.subspan(row * routing.k, routing.k), weights);
  }
}

/// What divides the weights of one row before scaling.
template <typename Real>
Real weight_sum(const MoeConfig& config, const Routing<Real>& routing, size_t row) {
  if (!config.norm_topk_prob) return 1;
  Real sum = 0;
  for (size_t i = 0; i < routing.k; ++i)
    sum += routing.scores.data.at(row, static_cast<size_t>(routing.chosen[row * routing.k + i]));
  return sum + Real{1e-20F};
}

template <typename Real>
void weigh(Tape<Real>& tape, const MoeConfig& config, const Routing<Real>& routing) {
  const auto scale = static_cast<Real>(config.routed_scaling_factor);
  for (size_t row = 0; row < routing.weights.rows(); ++row) {
    const Real sum = weight_sum(config, routing, row);
    for (size_t i = 0; i < routing.k; ++i) {
      const auto expert = static_cast<size_t>(routing.chosen[row * routing.k + i]);
      routing.weights.data.at(row, i) = routing.scores.data.at(row, expert) / sum * scale;
    }
  }
  // w = scale s / S:  ds = (scale dw - sum(dw w)) / S where S is the sum, scale dw where it is 1.
  tape.on_backward([config, routing, scale] {
    for (size_t row = 0; row < routing.weights.rows(); ++row) {
      const Real along =
          config.norm_topk_prob ? dot<Real>(routing.weights.grad.row(row), routing.weights.data.row(row)) : Real{0};
      const Real sum = weight_sum(config, routing, row);
      for (size_t i = 0; i < routing.k; ++i) {
        const auto expert = static_cast<size_t>(routing.chosen[row * routing.k + i]);
        routing.scores.grad.at(row, expert) += (scale * routing.weights.grad.at(row, i) - along) / sum;
      }
    }
  });
}

}  // namespace

template <typename Real>
Routing<Real> route(Tape<Real>& tape, const MoeTraining& training, const MoeParameters<Real>& parameters,
                    const Value<Real>& logits, const MoeRows& rows) {
  Routing<Real> routing;
  routing.k = training.config.experts_per_token;
  routing.scores = router_scores(tape, logits);
  routing.weights = tape.make(logits.rows(), routing.k);
  const std::span<int32_t> chosen = tape.template keep<int32_t>(logits.rows() * routing.k);
  choose(training, parameters, routing, rows, chosen);
  routing.chosen = chosen;
  weigh(tape, training.config, routing);
  return routing;
}

template <typename Real>
double balance_loss(Tape<Real>& tape, double weight, const Routing<Real>& routing,
                    std::span<const SampleRows> samples) {
  const size_t experts = routing.scores.cols();
  const auto all_rows = static_cast<double>(routing.scores.rows());
  // Of each sample and expert: weight * f / (rows of all samples), what its share of a row's scores is multiplied by.
  const std::span<Real> factors = tape.template keep<Real>(samples.size() * experts);
  std::ranges::fill(factors, Real{0});
  double loss = 0;
  for (size_t s = 0; s < samples.size(); ++s) {
    const std::span<Real> factor = factors.subspan(s * experts, experts);
    const double each = weight * static_cast<double>(experts) /
                        (static_cast<double>(routing.k) * static_cast<double>(samples[s].count) * all_rows);
    for (size_t i = samples[s].begin * routing.k; i < (samples[s].begin + samples[s].count) * routing.k; ++i)
      factor[static_cast<size_t>(routing.chosen[i])] += static_cast<Real>(each);
    for (size_t row = samples[s].begin; row < samples[s].begin + samples[s].count; ++row) {
      const std::span<const Real> scores = routing.scores.data.row(row);
      loss += static_cast<double>(dot<Real>(scores, factor) / std::accumulate(scores.begin(), scores.end(), Real{0}));
    }
  }
  const std::vector<SampleRows> kept(samples.begin(), samples.end());
  tape.on_backward([routing, factors, kept, experts] {
    for (size_t s = 0; s < kept.size(); ++s) {
      const std::span<const Real> factor = factors.subspan(s * experts, experts);
      for (size_t row = kept[s].begin; row < kept[s].begin + kept[s].count; ++row) {
        const std::span<const Real> scores = routing.scores.data.row(row);
        const Real sum = std::accumulate(scores.begin(), scores.end(), Real{0});
        const Real along = dot<Real>(scores, factor) / sum;
        for (size_t i = 0; i < experts; ++i)
          routing.scores.grad.at(row, i) += (factor[i] - along) / sum;
      }
    }
  });
  return loss;
}

#define TIDEPOOL_FOR_REAL(Real)                                                                                 \
  template Routing<Real> route(Tape<Real>&, const MoeTraining&, const MoeParameters<Real>&, const Value<Real>&, \
                               const MoeRows&);                                                                 \
  template double balance_loss(Tape<Real>&, double, const Routing<Real>&, std::span<const SampleRows>)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
