#include "train/moe.h"

#include <fmt/format.h>

#include "train/linear.h"
#include "train/matmul.h"
#include "train/router.h"
#include "train/row_blocks.h"
#include "train/swiglu.h"
#include "train/vector_math.h"

namespace tidepool {

namespace {

/// One use of an expert by a row. All uses lie in one list, expert by expert, each expert's in ascending order of rows;
/// the shared expert is the last, and all rows use it.
struct Use {
  size_t row;
  size_t choice;  ///< place among the row's choices; k for the shared expert
};

struct Uses {
  std::span<const Use> all;
  std::span<const size_t> begins;   ///< [experts + 2], the shared expert included
  std::span<const size_t> of_rows;  ///< [rows, k + 1]: the row's places in `all`, by ascending expert
  size_t k = 0;
};

template <typename Real>
Uses list_uses(Tape<Real>& tape, const Routing<Real>& routing) {
  const size_t rows = routing.scores.rows();
  const size_t experts = routing.scores.cols();
  const size_t k = routing.k;
  const std::span<size_t> begins = tape.template keep<size_t>(experts + 2);
  std::ranges::fill(begins, size_t{0});
  for (const int32_t expert : routing.chosen)
    ++begins[static_cast<size_t>(expert) + 1];
  begins[experts + 1] = rows;
  for (size_t e = 0; e <= experts; ++e)
    begins[e + 1] += begins[e];
  const std::span<Use> all = tape.template keep<Use>(rows * (k + 1));
  const std::span<size_t> of_rows = tape.template keep<size_t>(rows * (k + 1));
  std::vector<size_t> next(begins.begin(), begins.end());
  for (size_t row = 0; row < rows; ++row) {
    const std::span<size_t> places = of_rows.subspan(row * (k + 1), k + 1);
    for (size_t i = 0; i <= k; ++i) {
      const size_t expert = i < k ? static_cast<size_t>(routing.chosen[row * k + i]) : experts;
      places[i] = next[expert]++;
      all[places[i]] = {row, i};
    }
    std::ranges::sort(places);  // places ascend with the expert
  }
  return {all, begins, of_rows, k};
}

/// The rows of x as the experts use them: [uses, d].
template <typename Real>
Value<Real> gather_rows(Tape<Real>& tape, const Value<Real>& x, const Uses& uses) {
  const Value<Real> y = tape.make(uses.all.size(), x.cols());
  for_row_blocks(tape, uses.all.size(), x.cols(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      std::ranges::copy(x.data.row(uses.all[i].row), y.data.row(i).begin());
  });
  tape.on_backward([&tape, x, y, uses] {
    if (!x.wants_grad()) return;
    for_row_blocks(tape, x.rows(), (uses.k + 1) * x.cols(), [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end; ++row) {
        for (const size_t place : uses.of_rows.subspan(row * (uses.k + 1), uses.k + 1))
          add_scaled<Real>(x.grad.row(row), 1, y.grad.row(place));
      }
    });
  });
  return y;
}

/// The way back of gather_rows: each row is the sum of its uses, by ascending expert, the shared one last.
template <typename Real>
Value<Real> scatter_rows(Tape<Real>& tape, const Value<Real>& y, const Uses& uses, size_t rows) {
  const Value<Real> out = tape.make(rows, y.cols());
  for_row_blocks(tape, rows, (uses.k + 1) * y.cols(), [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      std::ranges::fill(out.data.row(row), Real{0});
      for (const size_t place : uses.of_rows.subspan(row * (uses.k + 1), uses.k + 1))
        add_scaled<Real>(out.data.row(row), 1, y.data.row(place));
    }
  });
  tape.on_backward([&tape, y, uses, out] {
    for_row_blocks(tape, uses.all.size(), y.cols(), [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i)
        add_scaled<Real>(y.grad.row(i), 1, out.grad.row(uses.all[i].row));
    });
  });
  return out;
}

/// The weight of each use, [uses, 1]; 1 for the shared expert.
template <typename Real>
Value<Real> gather_weights(Tape<Real>& tape, const Routing<Real>& routing, const Uses& uses) {
  const Value<Real> y = tape.make(uses.all.size(), 1);
  for (size_t i = 0; i < uses.all.size(); ++i) {
    const Use& use = uses.all[i];
    y.data.at(i, 0) = use.choice < uses.k ? routing.weights.data.at(use.row, use.choice) : Real{1};
  }
  tape.on_backward([routing, uses, y] {
    for (size_t i = 0; i < uses.all.size(); ++i) {
      const Use& use = uses.all[i];
      if (use.choice < uses.k) routing.weights.grad.at(use.row, use.choice) += y.grad.at(i, 0);
    }
  });
  return y;
}

/// A matrix of each expert, as the forward pass reads it.
template <typename Real>
using ExpertWeightValues = std::vector<Value<Real>>;

template <typename Real>
ExpertWeightValues<Real> weights_of(Tape<Real>& tape, const Qat& qat, const MoeParameters<Real>& parameters,
                                    const Parameter<Real>* ExpertParameters<Real>::*which) {
  ExpertWeightValues<Real> result;
  result.reserve(parameters.experts.size() + 1);
  for (const ExpertParameters<Real>& expert : parameters.experts)
    result.push_back(quantised(tape, qat, *(expert.*which)));
  result.push_back(quantised(tape, qat, *(parameters.shared.*which)));
  return result;
}

/// Products of all experts' uses with their matrices, [uses, out], in one go.
template <typename Real>
Value<Real> expert_linear(Tape<Real>& tape, const Value<Real>& x, const ExpertWeightValues<Real>& weights,
                          const Uses& uses) {
  const Value<Real> y = tape.make(x.rows(), weights.front().rows());
  const auto part = [begins = uses.begins](Span2d<Real> matrix, size_t expert) {
    return matrix.row_range(begins[expert], begins[expert + 1] - begins[expert]);
  };
  std::vector<MatrixProduct<Real>> products;
  products.reserve(weights.size());
  for (size_t e = 0; e < weights.size(); ++e) {
    if (uses.begins[e + 1] != uses.begins[e])
      products.push_back({part(x.data, e), transposed(weights[e].data), part(y.data, e)});
  }
  matmul_all<Real>(tape, products);
  tape.on_backward([&tape, x, weights, uses, y, part] {
    std::vector<MatrixProduct<Real>> gradients;
    gradients.reserve(2 * weights.size());
    for (size_t e = 0; e < weights.size(); ++e) {
      if (uses.begins[e + 1] == uses.begins[e]) continue;
      if (x.wants_grad()) gradients.push_back({part(y.grad, e), weights[e].data, part(x.grad, e), Into::kAdd});
      if (weights[e].wants_grad())
        gradients.push_back({transposed(part(y.grad, e)), part(x.data, e), weights[e].grad, Into::kAdd});
    }
    matmul_all<Real>(tape, gradients);
  });
  return y;
}

template <typename Real>
ExpertLoads count_loads(const Routing<Real>& routing, const MoeRows& rows) {
  ExpertLoads loads{std::vector<int64_t>(routing.scores.cols()), std::vector<int64_t>(routing.scores.cols())};
  for (size_t i = 0; i < routing.chosen.size(); ++i) {
    const bool is_image = !rows.is_image.empty() && rows.is_image[i / routing.k] != 0;
    ++(is_image ? loads.image : loads.text)[static_cast<size_t>(routing.chosen[i])];
  }
  return loads;
}

}  // namespace

template <typename Real>
MoeParameters<Real> bind_moe(const ParameterSet<Real>& parameters, const std::string& prefix, size_t experts) {
  const auto expert = [&](const std::string& name) {
    return ExpertParameters<Real>{&parameters.get(prefix + name + ".w1.weight"),
                                  &parameters.get(prefix + name + ".w3.weight"),
                                  &parameters.get(prefix + name + ".w2.weight")};
  };
  MoeParameters<Real> result;
  result.gate = &parameters.get(prefix + "gate.weight");
  result.bias = &parameters.get(prefix + "gate.bias");
  if (parameters.has(prefix + "gate.bias_vl")) result.bias_vl = &parameters.get(prefix + "gate.bias_vl");
  result.shared = expert("shared_experts");
  result.experts.reserve(experts);
  for (size_t e = 0; e < experts; ++e)
    result.experts.push_back(expert(fmt::format("experts.{}", e)));
  return result;
}

template <typename Real>
MoeResult<Real> mixture_of_experts(Tape<Real>& tape, const MoeTraining& training, const MoeParameters<Real>& parameters,
                                   const Value<Real>& x, const MoeRows& rows) {
  const Qat& qat = training.qat;
  const auto on_grid = [&](const Value<Real>& value) {
    return qat.activations ? quantise_activations(tape, value) : value;
  };
  const Routing<Real> routing = route(tape, training, parameters, linear(tape, qat, x, *parameters.gate), rows);
  MoeResult<Real> result;
  if (training.balance_weight != 0)
    result.balance_loss = balance_loss(tape, training.balance_weight, routing, rows.samples);
  result.loads = count_loads(routing, rows);

  const Uses uses = list_uses(tape, routing);
  const Value<Real> gathered = gather_rows(tape, on_grid(x), uses);
  const Value<Real> gate =
      expert_linear(tape, gathered, weights_of(tape, qat, parameters, &ExpertParameters<Real>::w1), uses);
  const Value<Real> up =
      expert_linear(tape, gathered, weights_of(tape, qat, parameters, &ExpertParameters<Real>::w3), uses);
  const Value<Real> hidden =
      swiglu(tape, gate, up, gather_weights(tape, routing, uses), static_cast<Real>(training.config.swiglu_limit));
  const Value<Real> down =
      expert_linear(tape, on_grid(hidden), weights_of(tape, qat, parameters, &ExpertParameters<Real>::w2), uses);
  result.y = scatter_rows(tape, down, uses, x.rows());
  return result;
}

#define TIDEPOOL_FOR_REAL(Real)                                                                            \
  template MoeParameters<Real> bind_moe(const ParameterSet<Real>&, const std::string&, size_t);            \
  template MoeResult<Real> mixture_of_experts(Tape<Real>&, const MoeTraining&, const MoeParameters<Real>&, \
                                              const Value<Real>&, const MoeRows&)
TIDEPOOL_FOR_REAL(float);
TIDEPOOL_FOR_REAL(double);
#undef TIDEPOOL_FOR_REAL

}  // namespace tidepool
