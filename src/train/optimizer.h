#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "kernels/gemm.h"
#include "train/parameter_set.h"

namespace tidepool {

/// What moves the matrices. (docs/training.md, "Optimisers")
enum class MatrixOptimizer : uint8_t {
  kMuon,   ///< each group by its published rule: Muon, for queries head by head, and the balanced update
  kAdamW,  ///< all of them by Adam's, with the decay and the rate of their group: for comparing the two
};

/// The published numbers. (docs/training.md, "Optimisers")
struct OptimizerOptions {
  double momentum = 0.95;     ///< of Muon and of the balanced update
  double adam_mean = 0.9;     ///< decay of Adam's first moment
  double adam_square = 0.95;  ///< and of its second
  double adam_epsilon = 1e-20;
  double weight_decay = 0.1;
  double update_rms = 0.18;  ///< of Muon's and the balanced update, so that they share Adam's learning rate
  double balance_speed = 0.001;
  double clip_norm = 0;  ///< gradients are scaled down to this norm, all together; 0 for never
  MatrixOptimizer matrices = MatrixOptimizer::kMuon;
  /// Which parameters are moved; all when it is null. Those that are not keep no state and do not decay.
  std::function<bool(const Parameter<float>&)> is_trained = {};
};

/// How often each expert was chosen since the last step, by the name of the selection bias that is to be balanced.
using BiasLoads = std::map<std::string, std::vector<int64_t>, std::less<>>;

/// Moves the parameters of a set by their gradients, each by its own rule. What it remembers between steps can be read
/// and set, so that a run goes on bit for bit where it was left.
class Optimizer {
 public:
  /// All must outlive it. `precision` is that of Muon's products.
  Optimizer(ThreadPool& pool, ParameterSet<float>& parameters, const OptimizerOptions& options,
            kernels::GemmPrecision precision);

  struct Step {
    double gradient_norm = 0;  ///< before clipping
  };
  /// One step at learning rate `rate`. Gradients are left as they are, but for clipping. Where one of them is not
  /// finite, the norm says so and nothing is moved.
  Step step(double rate, const BiasLoads& loads);

  /// A part of what is remembered.
  struct State {
    std::string name;  ///< "layers.0.attn.wq_a.weight.momentum"
    std::span<float> values;
  };
  /// All of it, in a fixed order; with steps() the whole state.
  [[nodiscard]] std::vector<State> state();
  [[nodiscard]] int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  /// What belongs to one parameter.
  struct Slot {
    Parameter<float>* parameter = nullptr;
    UpdateRule rule = UpdateRule::kAdam;
    Buffer<float> momentum;  ///< Muon, the balanced update, and Adam's first moment; none for kBalance
    Buffer<float> square;    ///< Adam's second moment
  };

  [[nodiscard]] double clip_gradients();
  void make_nesterov(Slot& slot, Span2d<float> update) const;
  void step_muon(double rate);
  void step_balanced(Slot& slot, double rate);
  void step_adam(Slot& slot, double rate) const;
  void step_bias(const Slot& slot, const BiasLoads& loads) const;
  /// w -= rate * (factor * update + decay * w).
  void apply(const Slot& slot, Span2d<const float> update, double rate, double factor) const;

  ThreadPool& pool_;
  OptimizerOptions options_;
  const kernels::GemmKernel& gemm_;
  kernels::GemmWorkspace workspace_;  ///< these three are memory of a step, kept
  kernels::GemmWorkspace scratch_;
  kernels::GemmWorkspace updates_;
  std::vector<Slot> slots_;
  int64_t steps_ = 0;
};

}  // namespace tidepool
