#include "train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "train/balanced_update.h"
#include "train/newton_schulz.h"

namespace tidepool {

namespace {

/// Matrices are orthogonalised together up to about this many values a thread: enough for small ones to fill all
/// threads, and few enough for what ten steps work on, three times as much, to stay in second-level caches.
constexpr size_t kBatchValues = size_t{1} << 15U;

size_t count_of(const Value<float>& value) {
  return value.rows() * value.cols();
}

std::span<float> all_of(const Span2d<float>& matrix) {
  return {matrix.data, matrix.rows * matrix.cols};
}

/// body(begin, end) over [0, count), in parts worth handing over.
template <typename Body>
void for_values(ThreadPool& pool, size_t count, const Body& body) {
  constexpr size_t kPart = 16384;
  pool.run((count + kPart - 1) / kPart,
           [&](size_t index, size_t) { body(index * kPart, std::min(count, (index + 1) * kPart)); });
}

/// The matrices that are orthogonalised one by one: whole, or head by head.
void add_parts(const Parameter<float>& parameter, UpdateRule rule, const Span2d<float>& update,
               std::vector<Span2d<float>>& parts) {
  const size_t rows = rule == UpdateRule::kMuonHeads ? parameter.head_rows : update.rows;
  for (size_t begin = 0; begin < update.rows; begin += rows)
    parts.push_back(update.row_range(begin, std::min(rows, update.rows - begin)));
}

UpdateRule rule_of(const Parameter<float>& parameter, MatrixOptimizer matrices) {
  const bool is_balanced_by_load = parameter.rule == UpdateRule::kBalance;
  return matrices == MatrixOptimizer::kAdamW && !is_balanced_by_load ? UpdateRule::kAdam : parameter.rule;
}

}  // namespace

Optimizer::Optimizer(ThreadPool& pool, ParameterSet<float>& parameters, const OptimizerOptions& options,
                     kernels::GemmPrecision precision)
    : pool_(pool), options_(options), gemm_(kernels::select_gemm_kernel(precision)) {
  slots_.reserve(parameters.all().size());
  for (Parameter<float>& parameter : parameters.all()) {
    if (options.is_trained && !options.is_trained(parameter)) continue;
    Slot slot;
    slot.parameter = &parameter;
    slot.rule = rule_of(parameter, options.matrices);
    if (slot.rule != UpdateRule::kBalance) slot.momentum = Buffer<float>(count_of(parameter.value));
    if (slot.rule == UpdateRule::kAdam) slot.square = Buffer<float>(count_of(parameter.value));
    slots_.push_back(std::move(slot));
  }
}

std::vector<Optimizer::State> Optimizer::state() {
  std::vector<State> result;
  result.reserve(2 * slots_.size());
  for (Slot& slot : slots_) {
    if (slot.momentum.size() != 0) result.push_back({slot.parameter->name + ".momentum", slot.momentum.span()});
    if (slot.square.size() != 0) result.push_back({slot.parameter->name + ".square", slot.square.span()});
  }
  return result;
}

Optimizer::Step Optimizer::step(double rate, const BiasLoads& loads) {
  const double norm = clip_gradients();
  if (!std::isfinite(norm)) return {norm};
  ++steps_;
  step_muon(rate);
  for (Slot& slot : slots_) {
    switch (slot.rule) {
      case UpdateRule::kSinkhorn: step_balanced(slot, rate); break;
      case UpdateRule::kAdam: step_adam(slot, rate); break;
      case UpdateRule::kBalance: step_bias(slot, loads); break;
      case UpdateRule::kMuon:
      case UpdateRule::kMuonHeads: break;
    }
  }
  return {norm};
}

double Optimizer::clip_gradients() {
  // Each parameter's sum is one task's, the sum of the sums has a fixed order.
  std::vector<double> squares(slots_.size());
  pool_.run(slots_.size(), [&](size_t index, size_t) {
    double sum = 0;
    for (const float value : all_of(slots_[index].parameter->value.grad))
      sum += static_cast<double>(value) * static_cast<double>(value);
    squares[index] = sum;
  });
  const double norm = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
  if (options_.clip_norm > 0 && norm > options_.clip_norm) {
    const auto factor = static_cast<float>(options_.clip_norm / norm);
    for (const Slot& slot : slots_) {
      const std::span<float> grad = all_of(slot.parameter->value.grad);
      for_values(pool_, grad.size(), [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i)
          grad[i] *= factor;
      });
    }
  }
  return norm;
}

/// M <- mu M + (1 - mu) G;  update = mu M + (1 - mu) G.
void Optimizer::make_nesterov(Slot& slot, Span2d<float> update) const {
  const auto keep = static_cast<float>(options_.momentum);
  const float take = 1 - keep;
  const float* grad = slot.parameter->value.grad.data;
  float* momentum = slot.momentum.data();
  for_values(pool_, count_of(slot.parameter->value), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      momentum[i] = keep * momentum[i] + take * grad[i];
      update.data[i] = keep * momentum[i] + take * grad[i];
    }
  });
}

void Optimizer::apply(const Slot& slot, Span2d<const float> update, double rate, double factor) const {
  const double of_slot = rate * slot.parameter->rate;
  const auto step = static_cast<float>(of_slot * factor);
  const auto keep = static_cast<float>(1 - (slot.parameter->decays ? of_slot * options_.weight_decay : 0));
  float* value = slot.parameter->value.data.data;
  for_values(pool_, count_of(slot.parameter->value), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      value[i] = keep * value[i] - step * update.data[i];
  });
}

void Optimizer::step_muon(double rate) {
  const size_t batch_values = kBatchValues * pool_.thread_count();
  const auto is_muon = [](const Slot& slot) {
    return slot.rule == UpdateRule::kMuon || slot.rule == UpdateRule::kMuonHeads;
  };
  for (size_t first = 0; first < slots_.size();) {
    size_t end = first;
    size_t values = 0;
    for (; end < slots_.size() && (values == 0 || values < batch_values); ++end) {
      if (is_muon(slots_[end])) values += count_of(slots_[end].parameter->value);
    }
    auto* const memory = reinterpret_cast<float*>(updates_.take(values * sizeof(float)));
    std::vector<Span2d<float>> updates(end - first);
    std::vector<Span2d<float>> parts;
    size_t used = 0;
    for (size_t i = first; i < end; ++i) {
      if (!is_muon(slots_[i])) continue;
      const Value<float>& value = slots_[i].parameter->value;
      updates[i - first] = {memory + used, value.rows(), value.cols()};
      used += count_of(value);
      make_nesterov(slots_[i], updates[i - first]);
      add_parts(*slots_[i].parameter, slots_[i].rule, updates[i - first], parts);
    }
    orthogonalise({pool_, gemm_, workspace_, scratch_}, parts);
    for (size_t i = first; i < end; ++i) {
      if (!is_muon(slots_[i])) continue;
      // An orthogonal r x c matrix has the RMS max(r, c)^-1/2.
      const Span2d<float>& update = updates[i - first];
      const size_t rows = slots_[i].rule == UpdateRule::kMuonHeads ? slots_[i].parameter->head_rows : update.rows;
      apply(slots_[i], update, rate, options_.update_rms * std::sqrt(static_cast<double>(std::max(rows, update.cols))));
    }
    first = end;
  }
}

void Optimizer::step_balanced(Slot& slot, double rate) {
  const Value<float>& value = slot.parameter->value;
  auto* const memory = reinterpret_cast<float*>(updates_.take(count_of(value) * sizeof(float)));
  const Span2d<float> update(memory, value.rows(), value.cols());
  make_nesterov(slot, update);
  balance_rows_and_columns(pool_, update);
  apply(slot, update, rate, options_.update_rms);
}

void Optimizer::step_adam(Slot& slot, double rate) const {
  const double steps = static_cast<double>(steps_);
  const auto keep_mean = static_cast<float>(options_.adam_mean);
  const auto keep_square = static_cast<float>(options_.adam_square);
  const auto mean_scale = static_cast<float>(1 / (1 - std::pow(options_.adam_mean, steps)));
  const auto square_scale = static_cast<float>(1 / (1 - std::pow(options_.adam_square, steps)));
  const auto epsilon = static_cast<float>(options_.adam_epsilon);
  const double of_slot = rate * slot.parameter->rate;
  const auto step = static_cast<float>(of_slot);
  const auto keep = static_cast<float>(1 - (slot.parameter->decays ? of_slot * options_.weight_decay : 0));
  const float* grad = slot.parameter->value.grad.data;
  float* value = slot.parameter->value.data.data;
  for_values(pool_, count_of(slot.parameter->value), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      slot.momentum[i] = keep_mean * slot.momentum[i] + (1 - keep_mean) * grad[i];
      slot.square[i] = keep_square * slot.square[i] + (1 - keep_square) * grad[i] * grad[i];
      const float scale = std::sqrt(slot.square[i] * square_scale) + epsilon;
      value[i] = keep * value[i] - step * (slot.momentum[i] * mean_scale / scale);
    }
  });
}

void Optimizer::step_bias(const Slot& slot, const BiasLoads& loads) const {
  const auto found = loads.find(slot.parameter->name);
  if (found == loads.end()) return;
  const std::vector<int64_t>& counts = found->second;
  const std::span<float> bias = all_of(slot.parameter->value.data);
  TIDEPOOL_CHECK(counts.size() == bias.size(), slot.parameter->name);
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (size_t i = 0; i < bias.size(); ++i) {
    const int64_t excess = counts[i] * static_cast<int64_t>(counts.size()) - total;
    if (excess == 0) continue;
    bias[i] += static_cast<float>(excess < 0 ? options_.balance_speed : -options_.balance_speed);
  }
}

}  // namespace tidepool
