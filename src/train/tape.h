#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/span2d.h"
#include "base/thread_pool.h"
#include "kernels/gemm.h"
#include "kernels/kernel_table.h"

namespace tidepool {

/// A matrix of a training step and the gradient of the loss with respect to it. Operators add to `grad`, so a value
/// that several of them read collects all their gradients. Borrowed from a Tape or a ParameterSet.
template <typename Real>
struct Value {
  Span2d<Real> data;
  Span2d<Real> grad;  ///< of the same shape; without data where no gradient is wanted

  [[nodiscard]] bool wants_grad() const { return grad.data != nullptr; }
  [[nodiscard]] size_t rows() const { return data.rows; }
  [[nodiscard]] size_t cols() const { return data.cols; }
};

/// The record of one forward pass: its values, and how to go back. An operator computes its result at once and leaves a
/// closure that, once the gradient of its result is complete, adds to those of its inputs. `backward` calls the
/// closures in reverse order, so whatever owns something shared sees the gradients of all its consumers added up, once.
///
/// `Real` is float for training; double is the same code for checking derivatives by finite differences. Memory is kept
/// from step to step. One thread at a time; operators spread their work over `pool` so that results do not depend on
/// its size.
template <typename Real>
class Tape {
 public:
  /// Whether a pass will be gone back over. Without that, values have no gradients and closures are dropped.
  enum class Mode : uint8_t { kForward, kTraining };

  /// `precision` is that of products of float matrices; those of double are exact in either case.
  Tape(ThreadPool& pool, Mode mode, kernels::GemmPrecision precision = kernels::GemmPrecision::kFloat32)
      : pool_(&pool),
        mode_(mode),
        kernels_(kernels::available_kernels().front()),
        gemm_(&kernels::select_gemm_kernel(precision)) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;
  ~Tape() = default;

  [[nodiscard]] ThreadPool& pool() const { return *pool_; }
  /// The engine's kernels, for what is neither a product of matrices nor needs inputs exact in bfloat16.
  [[nodiscard]] const kernels::KernelTable& kernels() const { return *kernels_; }
  [[nodiscard]] const kernels::GemmKernel& gemm() const { return *gemm_; }
  [[nodiscard]] kernels::GemmWorkspace& gemm_workspace() { return gemm_workspace_; }
  [[nodiscard]] bool is_training() const { return mode_ == Mode::kTraining; }

  /// A result of an operator: `data` is not initialised, `grad` is zero when training.
  [[nodiscard]] Value<Real> make(size_t rows, size_t cols);
  /// A matrix without gradient; not initialised.
  [[nodiscard]] Value<Real> make_constant(size_t rows, size_t cols);
  /// Memory that lives as long as the pass, for what a closure must remember; not initialised.
  template <typename T>
  [[nodiscard]] std::span<T> keep(size_t count) {
    return {reinterpret_cast<T*>(take_bytes(count * sizeof(T))), count};
  }

  /// `closure` may hold Values and spans of this tape by copy.
  void on_backward(std::function<void()> closure) {
    if (is_training()) closures_.push_back(std::move(closure));
  }

  /// Goes back over the pass. The gradient of the loss with respect to its last values must be set before.
  void backward();

  /// Forgets the pass; all its values end.
  void clear();

  /// Bytes held: at most twice those of the largest pass so far, and a slab of 64 MiB.
  [[nodiscard]] size_t bytes_reserved() const;

 private:
  /// Memory obtained at once.
  struct Slab {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes = 0;
  };

  std::byte* take_bytes(size_t bytes);
  /// Makes a slab with room for `bytes` the one that is being filled.
  void open_slab(size_t bytes);

  ThreadPool* pool_;
  Mode mode_;
  const kernels::KernelTable* kernels_;
  const kernels::GemmKernel* gemm_;
  kernels::GemmWorkspace gemm_workspace_;
  std::vector<std::function<void()>> closures_;
  std::vector<Slab> slabs_;  ///< those of this pass first
  size_t open_ = 0;          ///< slabs of this pass; the last of them is being filled
  size_t used_ = 0;          ///< bytes taken of it
};

extern template class Tape<float>;
extern template class Tape<double>;

}  // namespace tidepool
