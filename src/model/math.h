#pragma once

#include <functional>

#include "base/span2d.h"
#include "formats/matrix.h"
#include "kernels/runtime.h"

namespace tidepool {

/// Where values are rounded. `official` follows the released reference: bfloat16 between operators, binary32 inside.
/// `hp` keeps binary32 throughout; only the FP8/FP4 grids that the model itself defines remain.
struct Numerics {
  bool round_to_bf16 = true;
  /// Puts the inputs of FP8 and FP4 linears on the FP8 grid. Always on but where a test asks what it costs.
  bool quantise_activations = true;
};
inline constexpr Numerics kOfficialNumerics{true, true};
inline constexpr Numerics kHpNumerics{false, true};

/// What the linears are given under these numerics; decides which kernels may run them.
[[nodiscard]] constexpr kernels::LinearInputs linear_inputs(const Numerics& numerics) {
  return numerics.round_to_bf16 ? kernels::LinearInputs::kExactInBf16 : kernels::LinearInputs::kFloat32;
}

/// The arithmetic a layer uses: kernels and threads, with the rounding points of the chosen numerics in this one place.
/// Borrowed parts must outlive it. One forward pass at a time.
class Math {
 public:
  /// Throws Error(kUnsupported) when the kernels multiply in bfloat16 and the numerics keep more.
  Math(const Runtime& runtime, Numerics numerics);

  [[nodiscard]] const kernels::KernelTable& kernels() const { return runtime_.kernels; }
  [[nodiscard]] const Numerics& numerics() const { return numerics_; }
  [[nodiscard]] ThreadPool& pool() const { return runtime_.pool; }
  [[nodiscard]] size_t workers() const { return runtime_.pool.thread_count(); }

  /// One rounding point: to bfloat16 under the official numerics, nothing under hp.
  void round(std::span<float> values) const;
  void round_rows(Span2d<float> values) const;
  /// The FP8 activation grid in front of an FP8 or FP4 linear, in place. Widths are multiples of 32.
  void quantise(std::span<float> values) const;
  void quantise_rows(Span2d<float> values) const;
  /// The same, of a copy.
  void quantise_rows(Span2d<const float> values, Span2d<float> on_grid) const;

  /// y = x W^T with binary32 results. Inputs of FP8 and FP4 matrices are on the FP8 grid already where the model wants
  /// that.
  void linear_unrounded(const MatrixView& weight, Span2d<const float> x, Span2d<float> y) const;
  /// The same with the rounding point behind it.
  void linear(const MatrixView& weight, Span2d<const float> x, Span2d<float> y) const;

  /// Several products in one go, each with the rounding point behind it.
  void linear_all(std::span<const LinearJob> jobs) const;
  /// The inputs of jobs whose outputs linear_range() computes; in the arena.
  [[nodiscard]] PackedInputs pack_inputs(std::span<const LinearJob> jobs, Arena& arena) const {
    return {runtime_, jobs, &arena};
  }

  /// RMSNorm of each row with its rounding point. y may be x.
  void rms_norm_rows(Span2d<const float> x, const Bf16* weight, float eps, Span2d<float> y) const;

  /// body(row, worker) for each row in [0, rows), over all threads.
  void for_rows(size_t rows, const std::function<void(size_t row, size_t worker)>& body) const;

 private:
  Runtime runtime_;
  Numerics numerics_;
};

}  // namespace tidepool
